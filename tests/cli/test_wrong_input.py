"""Wrong input: exit 2, one clear line on stderr, no traceback, nothing created, whichever command is given it."""

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import ARGUMENTS, CONTENTS, MODULES, TEXTS, Ports, content, protocol, ring

from launcher.cli import main as launch
from peer.cli import main as peer
from peer.runtime.run_directory import own_directory, record_run
from peer.runtime.setup import prepare
from peer.spec.agreement import differing
from peer.spec.checks import why_not_continued
from peer.spec.loading import load_peer, load_spec


class Place:
    """A directory with the files that the cases name; knows when something was created in it."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self.path, self._capfd, self._caplog = path, capfd, caplog
        np.savez(path / "whole.npz", x=np.zeros((50, 8, 8), np.uint8), y=np.arange(50) % 10)
        (path / "cut.npz").write_bytes((path / "whole.npz").read_bytes()[:2000])
        np.savez(path / "objects.npz", x=np.array([{}], object), y=np.zeros(1, np.int64))
        for name, text in MODULES.items():
            (path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        (path / "peer.yaml").write_text("federation: fed.yaml\nid: peer0\nout: out\n")
        (path / "fed.yaml").write_text(json.dumps(content()))

    def refuses(self, main: Callable[[list[str]], int], argv: list[str], message: str) -> None:
        """Exit 2, the message in one line, and nothing created; `run` may have said what it was to run."""
        before = self._files()
        self._capfd.readouterr()
        assert main(argv) == 2
        printed = self._capfd.readouterr()
        assert message in printed.err
        assert printed.err.count("\n") == 1, printed.err
        assert printed.err.startswith("dfl-peer: " if main is peer else "dfl-launch: ")
        assert printed.out == "" or (argv[0] == "run" and re.fullmatch(r".+, \d+ peers?, in .+\n", printed.out))
        assert not self._caplog.records, "pytest keeps what is logged from stderr"
        assert self._files() == before

    def everyone_refuses(self, message: str) -> None:
        """dfl-launch check and run, and dfl-peer."""
        for argv in (["check", "fed.yaml"], ["run", "fed.yaml", "--out", "out"]):
            self.refuses(launch, argv, message)
        self.refuses(peer, ["--config", "peer.yaml"], message)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if "__pycache__" not in path.parts)


@pytest.fixture
def place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Place(tmp_path, capfd, caplog)


@pytest.mark.parametrize("case", TEXTS)
def test_file_that_cannot_be_read(case: str, place: Place) -> None:
    text, message = TEXTS[case]
    (place.path / "fed.yaml").write_text(text)
    place.everyone_refuses(message)


@pytest.mark.parametrize("case", CONTENTS)
def test_wrong_settings(case: str, place: Place) -> None:
    wrong, message = CONTENTS[case]
    (place.path / "fed.yaml").write_text(json.dumps(wrong))
    place.everyone_refuses(message)


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments(case: str, place: Place) -> None:
    arguments, message = ARGUMENTS[case]
    for command in ("check", "run"):
        place.refuses(launch, [command, "fed.yaml", *arguments], message)


def test_the_line_of_the_mistake_is_named(place: Place) -> None:
    (place.path / "fed.yaml").write_text("rounds: 2\nprotocol:\n  name: fibfl\n  gama: 0.3\nring: []\n")
    place.everyone_refuses("fed.yaml:4: unknown key `gama`")


def test_an_option_is_not_blamed_for_what_stands_in_the_file(place: Place) -> None:
    (place.path / "fed.yaml").write_text("rounds: 2\nprotocol:\n  name: fibfl\n  gama: 0.3\nring: []\n")
    place.refuses(launch, ["check", "fed.yaml", "--set", "protocol.gamma=0.3"], "fed.yaml:4: unknown key `gama`")


def test_a_key_of_a_peers_file_is_told_where_it_belongs(place: Place) -> None:
    (place.path / "fed.yaml").write_text(json.dumps({**content(), "device": "cpu"}))
    place.everyone_refuses("`device` belongs in a peer's file")


def test_each_block_is_validated_once_and_all_mistakes_are_told_together(place: Place) -> None:
    (place.path / "fed.yaml").write_text(json.dumps(protocol("counting:Counted")))
    load_peer(place.path / "peer.yaml")
    assert sys.modules["counting"].validations == ["counting:Counted"]
    wrong = {**protocol(gama=0.3), "data": {"name": "digits", "patrition": "iid"}, "roundz": 3}
    (place.path / "fed.yaml").write_text(json.dumps(wrong, indent=0))
    known = "unknown key `gama`; did you mean `gamma`?; ", "unknown key `patrition`; did you mean `partition`?; "
    for hint in (*known, "unknown key `roundz`; did you mean `rounds`?"):
        place.everyone_refuses(hint)


def test_no_file(place: Place) -> None:
    (place.path / "latin.yaml").write_bytes("name: caf\u00e9".encode("latin-1"))
    for wrong, message in (
        ("nothing.yaml", "nothing.yaml: cannot be read (No such file or directory)"),
        (".", "cannot be read (Is a directory)"),
        ("latin.yaml", "not a text file in UTF-8"),
    ):
        place.refuses(launch, ["run", wrong], message)
        place.refuses(peer, ["--config", wrong], message)


PEERS: dict[str, tuple[str, str]] = {
    "unknown key": ("lissen: x", "peer.yaml:3: unknown key `lissen`; did you mean `listen`?"),
    "another file's": ("rounds: 5", "peer.yaml:3: `rounds` belongs in the federation's file"),
    "no member": ("id: peer7", "`peer7` is not in the federation's ring; did you mean `peer"),
    "no federation": ("federation: nothing.yaml", "nothing.yaml: cannot be read"),
    "device": ("device: abacus", "`device`"),
    "device not there": ("device: cuda:99", "device `cuda:99`"),
    "threads": ("threads: 0", "`threads`: give a number from 1 to 1024, or auto"),
    "share of a GPU": ("gpu_memory: 2", "`gpu_memory`"),
    "listen": ("listen: nonsense", "`nonsense` is not host:port"),
    "out below a file": ("out: fed.yaml/below", "is a file, so nothing can be written below it; give"),
    "out is a file": ("out: fed.yaml", "is a file, so nothing can be written below it; give another `out`"),
    "out cannot be": ("out: /proc/nobody", "/proc/nobody"),
    "out with a misspelt id": ("out: runs/{ID}", "`out`: `{ID}` in runs/{ID} stands for nothing; write `{id}` for"),
    "TLS with a misspelt id": (
        "tls: {ca: ca.pem, cert: '{Id}.pem', key: k.pem}",
        "`tls.cert`: `{Id}` in {Id}.pem stands",
    ),
    "own data with a misspelt id": (
        "data: {name: npz, path: '{ id }.npz'}",
        "`{ id }` in { id }.npz stands for nothing",
    ),
    "out too long": (f"out: {'x' * 300}", "File name too long"),
    "out holds a NUL": ('out: "a\\0b"', "peer.yaml:3: `out` holds a NUL character; remove it"),
    "own data unknown": ("data: {name: nzp}", "unknown data `nzp`; did you mean `npz`?"),
    "own data missing": ("data: {name: npz, path: nothing.npz}", "there is no file"),
    "half of TLS": ("tls: {ca: ca.pem}", "`tls.cert` is missing"),
    "TLS files missing": ("tls: {ca: ca.pem, cert: c.pem, key: k.pem}", "ca.pem"),
}


@pytest.mark.parametrize("case", PEERS)
def test_wrong_peer_file(case: str, place: Place) -> None:
    line, message = PEERS[case]
    right = {"federation": "federation: fed.yaml", "id": "id: peer0"}
    text = "\n".join({**right, line.partition(":")[0]: line}.values())
    (place.path / "peer.yaml").write_text(text)
    place.refuses(peer, ["--config", "peer.yaml"], message)


def test_each_file_in_the_others_place(place: Place) -> None:
    config = "peer.yaml: is a peer's config, which goes to dfl-peer --config; give the federation's file that it names"
    for command in (["check", "peer.yaml"], ["run", "peer.yaml", "--peers", "3"]):
        place.refuses(launch, command, config)
    federation = "fed.yaml: is a federation's file, which goes to dfl-launch run; give a peer's config"
    place.refuses(peer, ["--config", "fed.yaml"], federation)
    (place.path / "peer.yaml").write_text("federation: peer.yaml\nid: peer0\n")
    place.refuses(peer, ["--config", "peer.yaml"], config)


def test_unwritable_output(place: Place) -> None:
    (place.path / "thesis").mkdir()
    (place.path / "thesis" / "thesis.tex").touch()
    outs = ["fed.yaml", "fed.yaml/below", "/proc/nobody", "thesis", "x" * 300]
    if os.geteuid():
        (place.path / "locked").mkdir(mode=0o500)
        outs += ["locked/run"]
    for out in outs:
        place.refuses(launch, ["run", "fed.yaml", "--out", out], "--out")


def test_a_disk_without_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of a million rounds; and a disk with room for one peer, on which three are to run."""
    (place.path / "fed.yaml").write_text(json.dumps(content(trace=True, rounds=1_000_000)))
    place.refuses(launch, ["run", "fed.yaml", "--out", "out"], "make room or give another directory")
    place.refuses(peer, ["--config", "peer.yaml"], "make room or give another directory")
    (place.path / "fed.yaml").write_text(json.dumps(content()))
    config, spec = load_peer(place.path / "peer.yaml")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=20_000_000))
    prepare(config, spec)
    place.refuses(launch, ["run", "fed.yaml", "--out", "out"], "the disk has 20 MB free and this run keeps up to 44 MB")


def test_a_device_that_is_not_there(place: Place) -> None:
    place.refuses(launch, ["run", "fed.yaml", "--out", "out", "--device", "cuda:99"], "device `cuda:99`: this machine")


def test_no_certificate_takes_the_place_of_the_ca(place: Place) -> None:
    (place.path / "fed.yaml").write_text(json.dumps(content(ring=ring(id="ca"))))
    place.refuses(launch, ["certs", "fed.yaml"], "no certificate can be made for the id `ca`")


def test_address_in_use(place: Place, ports: Ports) -> None:
    (port,) = ports(1)
    (place.path / "fed.yaml").write_text(json.dumps(content(ring=ring(address=f"127.0.0.1:{port}"))))
    with socket.create_server(("127.0.0.1", port)):
        message = f"cannot listen at 127.0.0.1:{port}: address already in use"
        place.refuses(peer, ["--config", "peer.yaml"], message)
        place.refuses(launch, ["run", "fed.yaml"], message)


def test_directory_of_another_run(place: Place) -> None:
    config, spec = load_peer(place.path / "peer.yaml")
    assert config.out
    with own_directory(config, spec):
        record_run(config.directory, config.id, spec)
        place.refuses(peer, ["--config", "peer.yaml"], "out: this peer is running already; end that process first")
    for wrong, key in ((content(seed=43), "seed"), (content(model="mlp3"), "model")):
        (place.path / "fed.yaml").write_text(json.dumps(wrong))
        place.refuses(peer, ["--config", "peer.yaml"], key)
    (place.path / "fed.yaml").write_text(json.dumps(content()))
    (place.path / "peer.yaml").write_text("federation: fed.yaml\nid: peer1\nout: out\n")
    place.refuses(peer, ["--config", "peer.yaml"], "out: belongs to peer `peer0`; give another `out`")
    run = json.loads((config.out / "run.json").read_text())
    for number, writer in ((1, {"release": ""}), (99, {"release": "9.0+ab"})):
        (config.out / "run.json").write_text(json.dumps({**run, "id": "peer1", "version": number, **writer}))
        by = "dfl 9.0+ab" if writer["release"] else "an earlier release of dfl"
        place.refuses(
            peer, ["--config", "peer.yaml"], f"out: holds a run in directory format {number}, written by {by}, "
        )
    for torn in ("half a li", "{}", "[]"):
        (config.out / "run.json").write_text(torn)
        place.refuses(peer, ["--config", "peer.yaml"], "is not readable")


def test_what_is_right_though_it_looks_odd(place: Place) -> None:
    """YAML 1.2's numbers, JSON, names without braces, anchors, and a comment."""
    (place.path / "fed.yaml").write_text(
        "protocol: {name: fibfl, lr: 1e-3, gamma: 1}  # a number each\n"
        "data: digits\nmodel: mlp\nseed: 0x10\ninit: shared\n"
        "ring:\n- &one {id: 'no', address: 'localhost:9100'}\n- {id: '1', address: '[::1]:9101'}\n"
        "- {id: a-b, address: 'host.example:9102'}\n"
    )
    spec = load_spec(place.path / "fed.yaml", overrides=["protocol.lr=2e-3", "name=odd", "trace=true"])
    assert spec.protocol.model_dump()["lr"] == 2e-3
    assert (spec.ids, spec.seed, spec.name, spec.trace) == (("no", "1", "a-b"), 16, "odd", True)
    (place.path / "fed.json").write_text(json.dumps(content(), indent=4))
    (place.path / "peer.json").write_text('{"federation": "fed.json", "id": "peer2"}')
    config, as_json = load_peer(place.path / "peer.json")
    assert config.out == place.path / "peer2"
    (place.path / "fed.yaml").write_text(json.dumps(content(name="fed")))
    assert as_json.agreement.digest == load_spec(place.path / "fed.yaml").agreement.digest
    assert launch(["check", "fed.json"]) == 0


def test_peers_agree_on_who_is_in_the_ring_and_not_on_where(place: Place) -> None:
    first, others = load_spec(place.path / "fed.yaml"), content(ring=ring(address="10.0.0.1:7700"), plaintext=False)
    (place.path / "fed.yaml").write_text(json.dumps(others))
    moved = load_spec(place.path / "fed.yaml")
    assert (moved.agreement.digests, moved.agreement.digest) == (first.agreement.digests, first.agreement.digest)
    assert why_not_continued(moved, differing(moved.agreement.digests, first.agreement.digests), 2) is None
    (place.path / "fed.yaml").write_text(json.dumps(content(ring=content()["ring"][::-1])))
    turned = load_spec(place.path / "fed.yaml")
    why = why_not_continued(turned, differing(turned.agreement.digests, first.agreement.digests), 2)
    assert why
    assert why.startswith("it differs in `ring`, and what may change in a run is `rounds`")


def test_two_federations_on_one_machine_have_ports_of_their_own(place: Place) -> None:
    (place.path / "fed.yaml").write_text(json.dumps(content(ring=None)))
    spec = load_spec(place.path / "fed.yaml", peers=3, port=9000)
    assert [member.address for member in spec.ring] == [f"127.0.0.1:{9000 + i}" for i in range(3)]
    assert load_spec(place.path / "fed.yaml", peers=3).ring[0].address == "127.0.0.1:7700"
    assert launch(["check", "fed.yaml", "--peers", "3", "--port", "65533"]) == 0
    few = "--port 65534: give a number from 1 to 65533, as 3 ports are needed"
    place.refuses(launch, ["check", "fed.yaml", "--peers", "3", "--port", "65534"], few)
    place.refuses(launch, ["run", "fed.yaml", "--port", "9000"], "--port 9000 goes with --peers N")


UNUSABLE = ([], ["walk"], ["run"], ["run", "fed.yaml", "--peers", "x"], ["run", "fed.yaml", "--st", "x"])


@pytest.mark.parametrize("argv", UNUSABLE)
def test_wrong_command_line(argv: list[str], place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        launch(argv)
    assert "Traceback" not in capfd.readouterr().err
