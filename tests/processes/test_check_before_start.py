"""`dfl-peer --check`: a line for each thing that a start needs, whatever else is wrong; nothing is left behind."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from authority import authority
from cryptography import x509

from peer.cli import main
from peer.network.transport.addresses import check_tcp, why_taken
from peer.network.wire.messages import SERVICE, StatusReply

Ports = Callable[[int], list[int]]


class Site:
    """The two files of peer0, and what its check says."""

    def __init__(self, path: Path, ports: list[int], capfd: pytest.CaptureFixture[str]) -> None:
        self.path, self.ports, self._capfd = path, ports, capfd
        ring = [{"id": f"peer{n}", "address": f"127.0.0.1:{port}"} for n, port in enumerate(ports)]
        self.spec: dict[str, Any] = {"protocol": "fibfl", "data": {"name": "digits", "limit": 100}, "ring": ring}
        self.config: dict[str, Any] = {"federation": "federation.yaml", "id": "peer0", "device": "cpu"}

    def check(self) -> tuple[int, dict[str, tuple[str, str]]]:
        """The exit status, and of each thing the mark and what is said; nothing was created, no port is open."""
        (self.path / "federation.yaml").write_text(json.dumps(self.spec))
        (self.path / "peer0.yaml").write_text(json.dumps(self.config))
        before = sorted(self.path.rglob("*"))
        code = main(["--check", str(self.path / "peer0.yaml")])
        printed = self._capfd.readouterr()
        assert printed.err == ""
        assert sorted(self.path.rglob("*")) == before
        found = re.findall(r"^(.+?) +(right|WRONG|-) +(.+)$", printed.out, re.MULTILINE)
        assert len(found) == printed.out.count("\n")
        return code, {what: (mark, said) for what, mark, said in found}


@contextmanager
def answering(port: int, reply: StatusReply) -> Iterator[None]:
    """What a peer that runs at the port says of itself."""
    server = grpc.server(ThreadPoolExecutor(1))
    told = grpc.unary_unary_rpc_method_handler(lambda _question, _context: reply.SerializeToString())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Status": told}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield
    server.stop(None).wait()


def hang_up(listening: socket.socket) -> None:
    """On everybody who calls."""
    with suppress(OSError):
        while True:
            listening.accept()[0].close()


@pytest.fixture
def site(tmp_path: Path, ports: Ports, capfd: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, ports(4), capfd)


def test_all_is_right(site: Site) -> None:
    """One neighbour runs, the other does not yet; peer2 is none of its neighbours."""
    with answering(site.ports[1], StatusReply(id="peer1", federation="federation", state="training", round=3)):
        code, said = site.check()
    assert code == 0
    assert {mark for mark, _ in said.values()} == {"right"}
    assert [*said] == [
        *("config", "device", "data", "model", "directory", "disk", "certificates", "port"),
        *("neighbour peer3", "neighbour peer1"),
    ]
    assert said["data"][1] == "its part of digits: 25 samples, inputs (1, 8, 8), 10 classes"
    assert said["directory"][1] == f"{site.path}/peer0: can be written"
    assert said["neighbour peer1"][1] == f"127.0.0.1:{site.ports[1]}: it runs, training in round 3"
    assert "nobody listens there yet" in said["neighbour peer3"][1]
    assert why_taken(f"127.0.0.1:{site.ports[0]}") is None


def test_who_accepts_connections_need_not_be_the_neighbour(site: Site) -> None:
    """A stranger who hangs up, and a peer of another federation: neither is told to be the neighbour."""
    stranger = socket.create_server(("127.0.0.1", site.ports[1]))
    hanging_up = threading.Thread(target=hang_up, args=(stranger,))
    hanging_up.start()
    with stranger, answering(site.ports[3], StatusReply(id="peer3", federation="clinics")):
        code, said = site.check()
        stranger.shutdown(socket.SHUT_RDWR)
        hanging_up.join()
    assert code == 0
    seen = "something accepts connections there; whether it is"
    assert said["neighbour peer1"][0] == said["neighbour peer3"][0] == "-"
    assert f"{seen} peer1 cannot be told (" in said["neighbour peer1"][1]
    assert f"{seen} peer3 cannot be told (it belongs to another federation, `clinics`)" in said["neighbour peer3"][1]


def test_the_peers_id_stands_for_itself_in_its_paths(site: Site) -> None:
    site.config |= {
        "out": "runs/{id}",
        "tls": {"ca": "ca.pem", "cert": "{id}.pem", "key": "{id}.key"},
    }
    (site.path / "ca.pem").touch()
    code, said = site.check()
    assert (code, said["directory"]) == (2, ("right", f"{site.path}/runs/peer0: can be written"))
    assert said["certificates"][1].startswith(f"{site.path}/peer0.pem: cannot be read")


def test_a_place_where_nothing_can_be_made_whatever_its_permissions_say(site: Site) -> None:
    site.config["out"] = "/proc/x"
    assert site.check()[1]["directory"][0] == "WRONG"


def test_everything_is_looked_at_whatever_is_wrong(site: Site) -> None:
    (site.path / "file").touch()
    site.spec["ring"][3]["address"] = "no-such-host.invalid:7700"
    site.config |= {
        "device": "cuda:99",
        "data": {"name": "csv", "path": "nothing.csv"},
        "out": "file/out",
        "health": "192.0.2.1:9",
        "tls": {"ca": "ca.pem", "cert": "peer0.pem", "key": "peer0.key"},
    }
    with socket.create_server(("127.0.0.1", site.ports[0])):
        code, said = site.check()
    assert code == 2
    ways_out = {
        "device": "device `cuda:99`: this machine shows",
        "data": "there is no file",
        "directory": "is a file, so nothing can be written below it; give another `out`",
        "certificates": "ca.pem: cannot be read (No such file or directory); correct the path that `tls`, --tls or "
        "--certs names, or make certificates anew with `dfl-launch certs`, for all peers and `peer0` among them",
        "port": "address already in use; stop what uses it or give this peer another `listen`",
        "health": "give this peer another `health`",
        "neighbour peer3": "the name no-such-host.invalid is not known here",
    }
    assert {what for what, (mark, _) in said.items() if mark == "WRONG"} == {*ways_out}
    for what, part in ways_out.items():
        assert part in said[what][1]
    assert said["model"][0] == said["disk"][0] == "-"
    assert said["neighbour peer1"][0] == "right"


def test_who_is_to_be_told_of_events_is_looked_at_where_somebody_is(site: Site, ports: Ports) -> None:
    (free,) = ports(1)
    (site.path / "mine.py").write_text("def track(event): ...\n")
    site.spec |= {"metrics": free, "tensorboard": True, "tracker": "mine:track"}
    said = site.check()[1]
    assert said["metrics"] == ("right", f"127.0.0.1:{free} is free")
    assert (said["tensorboard"][0], said["tracker"]) == ("right", ("right", "mine:track is there"))
    site.config |= {"metrics": "192.0.2.1:9", "tracker": "mine:nothing"}
    code, said = site.check()
    assert (code, said["metrics"][0]) == (2, "WRONG")
    assert "give this peer another `metrics`" in said["metrics"][1]
    assert said["tracker"][0] == "WRONG"
    assert said["tracker"][1].startswith("`mine:nothing`: the module `mine` (")
    assert said["tracker"][1].endswith("has no `nothing`; known: track")


def test_certificates_of_another_peer_and_none_at_all(site: Site) -> None:
    ca = authority()
    ca.write(site.path, "ca")
    ca.issue(x509.DNSName("peer1")).write(site.path, "peer1")
    site.config["tls"] = {"ca": "ca.pem", "cert": "peer1.pem", "key": "peer1.key"}
    assert "is made out to peer1, not to `peer0` alone" in site.check()[1]["certificates"][1]
    del site.config["tls"]
    site.config["listen"] = f"0.0.0.0:{site.ports[0]}"
    code, said = site.check()
    assert (code, said["certificates"][0]) == (2, "WRONG")
    assert "make certificates with `dfl-launch certs`" in said["certificates"][1]


def test_a_wrong_config_is_told_first(site: Site) -> None:
    site.config["lissen"] = "x"
    code, said = site.check()
    assert (code, said["config"][0], said["all else"][0]) == (2, "WRONG", "-")
    assert "did you mean `listen`?" in said["config"][1]


def test_data_that_the_start_would_download_are_not(site: Site) -> None:
    site.spec["data"] = {"name": "mnist", "root": "mnist", "download": True}
    code, said = site.check()
    assert code == 0
    assert said["data"] == ("-", "mnist is not here yet; the start downloads it")
    site.spec["data"]["download"] = False
    assert "or download: true" in site.check()[1]["data"][1]


async def test_a_host_that_does_not_answer() -> None:
    """The host could be behind a firewall that drops packets; here it is a listener whose queue is full."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for caller in (first, second):
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        found = await check_tcp(f"127.0.0.1:{full.getsockname()[1]}", seconds=0.3)
    assert not found.right
    assert re.fullmatch(r"no answer within 0.3 s: is the machine up, and do firewalls .* port \d+\?", found.said)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
async def test_an_address_of_ipv6(ports: Ports) -> None:
    (port,) = ports(1)
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        assert (await check_tcp(f"[::1]:{port}")).accepted


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "the GPU's memory is full (CUDA out of memory); set a"),
        (RuntimeError("CUDA error: no kernel image\nfor this device"), "does not work: CUDA error: no kernel image"),
    ],
)
def test_a_gpu_that_cannot_be_used(site: Site, monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str) -> None:
    def zeros(*_: object, **__: object) -> None:
        monkeypatch.undo()  # from here on there is none: what is looked at later goes on on the CPU
        raise raised

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    # What the check would set for the whole process.
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda _: None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch, "zeros", zeros)
    site.config["device"] = "cuda:0"
    code, found = site.check()
    assert (code, found["device"][0], found["model"][0]) == (2, "WRONG", "right")
    assert said in found["device"][1]
