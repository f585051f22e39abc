"""`dfl-launch status` and `watch`: peers that nobody launched are asked, the dead, the strange and the hostile too."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import STDOUT
from typing import Any

import grpc
import pytest
from authority import authority
from cryptography import x509
from endless import endless
from interpreter import Commands
from real_peers import Build, SmallFederation, until

from launcher.certificates import make_certificates
from launcher.cli import main
from launcher.run_files import certificate_files
from peer.network.operator_client import STATUS_METHOD, PeerStatus, StatusClient
from peer.network.wire.messages import Resources, StatusReply

Ports = Callable[[int], list[int]]
LONG = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}


def ask(
    federation: SmallFederation, capfd: pytest.CaptureFixture[str], *argv: str | Path
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status of `dfl-launch status --json`, and what it says by peer."""
    capfd.readouterr()
    code = main(["status", str(federation.directory / "federation.yaml"), "--json", *map(str, argv)])
    told = json.loads(capfd.readouterr().out)
    assert told["federation"] == "tiny"
    return code, {one["id"]: one for one in told["peers"]}


def secured(federation: SmallFederation, certs: Path) -> None:
    make_certificates(federation.spec, certs, days=2)
    for id in federation.ids:
        federation.configure(id, tls={name: str(path) for name, path in certificate_files(certs, id).items()})


def test_who_runs_who_died_and_who_never_came(federation: Build, capfd: pytest.CaptureFixture[str]) -> None:
    made = endless(federation)
    made.start("peer0", "peer1")
    until(lambda: ask(made, capfd)[1]["peer0"]["answers"], 30, "peer0 answers")
    code, told = ask(made, capfd)
    assert code == 1
    assert (told["peer0"]["state"], told["peer0"]["round"], told["peer0"]["rounds"]) == ("joining", 0, 5000)
    assert told["peer2"] == {
        "id": "peer2",
        "address": made.address("peer2"),
        "answers": False,
        "reason": "connection refused",
    }
    made.start("peer2")
    done = until(lambda: (all_told := ask(made, capfd)[1])["peer0"].get("accuracy") and all_told, 30, "a round is over")
    assert 0 < done["peer0"]["accuracy"] <= 1
    assert done["peer0"]["figure"] == done["peer0"]["accuracy"]
    for id in ("peer0", "peer1"):  # a round may be over before the first heartbeat has come
        until(lambda id=id: links(ask(made, capfd)[1][id]) == ["up", "up"], 20, f"{id} has both of its neighbours")
    made.peers["peer2"].signal(signal.SIGKILL)
    made.peers["peer2"].wait()
    until(lambda: set(links(ask(made, capfd)[1]["peer1"])) - {"up"}, 20, "peer1 has lost its neighbour")
    assert main(["status", str(made.directory)]) == 1, "a directory of a run will do"
    table = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert any(line.startswith("peer2 no answer connection refused") for line in table), table
    assert any("peer2 down" in line or "peer2 suspected" in line for line in table if line.startswith("peer1")), table


def links(peer: dict[str, Any]) -> list[str]:
    return [link["state"] for link in peer["neighbours"]]


def test_with_certificates_any_of_the_federations_will_do_and_no_others(
    federation: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = endless(federation)
    certs = tmp_path / "certs"
    secured(made, certs)
    made.start()
    until(lambda: ask(made, capfd, "--certs", certs)[0] == 0, 30, "all answer")
    one = tmp_path / "one"
    one.mkdir()
    for name in ("ca.pem", "peer2.pem", "peer2.key"):
        (certs / name).rename(one / name)
    assert ask(made, capfd, "--certs", one)[0] == 0
    assert ask(made, capfd, "--tls", one / "ca.pem", one / "peer2.pem", one / "peer2.key")[0] == 0
    assert main(["status", str(made.directory)]) == 1, "a directory of a run will do"
    assert "Peers that have certificates answer only to certificates" in capfd.readouterr().out

    stranger = authority()
    (tmp_path / "strange").mkdir()
    stranger.issue(x509.DNSName("peer0")).write(tmp_path / "strange", "peer0")
    (tmp_path / "strange" / "ca.pem").write_bytes(stranger.shown)
    code, told = ask(made, capfd, "--certs", tmp_path / "strange")
    assert code == 1
    assert told["peer0"]["reason"].startswith("its certificate is of another CA: made out to `peer0`, valid ")
    for wrong, sentence in (
        (("--certs", tmp_path), "holds no certificate"),
        (("--tls", one / "ca.pem", one / "peer2.pem", certs / "peer0.key"), "is not the key of"),
    ):
        assert main(["status", str(made.directory / "federation.yaml"), *map(str, wrong)]) == 2
        assert sentence in capfd.readouterr().err


Reply = Callable[[Any], Iterator[bytes]]


@contextmanager
def answering(port: int, reply: Reply) -> Iterator[None]:
    """A server that answers Status with whatever it likes."""

    def serve(_requests: Any, context: Any) -> Iterator[bytes]:
        yield from reply(context)

    handler = grpc.method_handlers_generic_handler(
        STATUS_METHOD.split("/")[1], {"Status": grpc.stream_stream_rpc_method_handler(serve)}
    )
    server = grpc.server(ThreadPoolExecutor(4), [handler], options=[("grpc.max_send_message_length", -1)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield
    server.stop(None)


def a_reply(**changes: Any) -> bytes:
    return StatusReply(**{"id": "peer0", "federation": "tiny", "rounds": 2, **changes}).SerializeToString()


ESCAPES = "\x1b[2J\r\n" * 100
HOSTILE: dict[str, tuple[Reply, str]] = {
    "another peer": (lambda _: iter([a_reply(id="peer1")]), "the peer at this address is `peer1`"),
    "another federation": (
        lambda _: iter([a_reply(federation=ESCAPES)]),
        "it belongs to another federation, `?[2J??",
    ),
    "huge": (lambda _: iter([a_reply(state="x" * 1_000_000)]), "its answer is longer than any that a peer gives"),
    "no protobuf": (lambda _: iter([b"\xff" * 1000]), "its answer is no StatusReply"),
    "nothing": (lambda _: iter([]), "its answer is empty"),
    "escapes in an error": (lambda context: context.abort(grpc.StatusCode.UNKNOWN, "\x1b[2J" * 500), "?[2J?[2J"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_answers_are_a_reason_in_plain_words(case: str, ports: Ports) -> None:
    reply, reason = HOSTILE[case]
    (port,) = ports(1)
    with answering(port, reply):
        client = StatusClient("tiny", {"peer0": f"127.0.0.1:{port}"}, None)
        (answer,) = (await client.ask_all()).values()
        await client.aclose()
    assert isinstance(answer, str)
    assert answer.startswith(reason)
    assert answer.isprintable()
    assert 0 < len(answer) < 400


async def test_what_a_hostile_answer_says_is_short_plain_and_possible(ports: Ports) -> None:
    links = [
        StatusReply.Neighbour(id=ESCAPES, address=ESCAPES, state=ESCAPES, reason=ESCAPES, durable=-(2**62))
        for _ in range(2)
    ]
    reply = a_reply(
        state=ESCAPES, round=2**32 - 1, accuracy=float("inf"), bytes_sent=2**64 - 1, neighbours=links,
        shortage=StatusReply.Shortage(awaited=[StatusReply.Shortage.Awaited(id=ESCAPES, reason=ESCAPES)] * 20),
        resources=Resources(gpu=ESCAPES, load=float("nan"), bytes_per_second={ESCAPES: -1.0}),
    )  # fmt: skip
    (port,) = ports(1)
    members = {"peer0": f"127.0.0.1:{port}", **{f"peer{n}": "127.0.0.1:1" for n in range(1, 5)}}
    with answering(port, lambda _: iter([reply])):
        client = StatusClient("tiny", members, None)
        answer = await client.ask("peer0")
        await client.aclose()
    assert isinstance(answer, PeerStatus)
    assert answer.accuracy is None
    assert len(answer.state) < 40
    assert len(answer.awaited) == len(members)
    told = [*answer.neighbours, *answer.awaited]
    texts = [answer.state, answer.resources["gpu"], *(text for one in told for text in vars(one).values())]
    assert all(str(text).isprintable() and len(str(text)) <= 300 for text in texts)
    assert json.dumps(answer.resources)


async def test_who_says_nothing_is_not_waited_for(ports: Ports) -> None:
    """One takes connections and is silent, one takes the question and never answers, one sends answers for ever."""

    def forever(context: Any) -> Iterator[bytes]:
        while context.is_active():
            yield a_reply(id="peer2")

    def silent(context: Any) -> Iterator[bytes]:
        over = threading.Event()
        if context.add_callback(over.set):
            over.wait()
        yield b""

    mute, sleepy, chatty = ports(3)
    members = {f"peer{n}": f"127.0.0.1:{port}" for n, port in enumerate((mute, sleepy, chatty))}
    with socket.create_server(("127.0.0.1", mute)), answering(sleepy, silent), answering(chatty, forever):
        client = StatusClient("tiny", members, None, timeout_s=1.0)
        answers = await client.ask_all()
        await client.aclose()
    assert answers["peer0"] == answers["peer1"] == "no answer within 1 s"
    assert isinstance(answers["peer2"], str)


def test_a_hostile_table_has_no_escapes(federation: Build, ports: Ports, capfd: pytest.CaptureFixture[str]) -> None:
    (port,) = ports(1)
    made = federation("solo", peers=1, addresses=[f"127.0.0.1:{port}"])
    link = StatusReply.Neighbour(id="[bold]" + ESCAPES, state="down", reason=ESCAPES)
    with answering(port, lambda _: iter([a_reply(state="[link=file:///etc]\x1b[2J", neighbours=[link])])):
        assert main(["status", str(made.directory / "federation.yaml")]) == 0
    out = capfd.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert "[link=" in out
    assert "[bold]" in out
    assert "too few members" not in out


@pytest.mark.parametrize("command", ["status", "watch", "leave", "expel"])
def test_where_names_of_containers_are_unknown_the_way_inside_is_told(
    command: str, federation: Build, commands: Commands
) -> None:
    made = federation("fedavg", addresses=[f"container{n}.invalid:7700" for n in range(3)], on_loss="bypass")
    words = ["-m", "launcher.cli", command, str(made.directory), *["peer1"][: command in ("leave", "expel")]]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    with commands.command(words, stderr=STDOUT, env=env) as asking:
        assert asking.stdout
        assert any("`docker exec` or `kubectl exec` gives this command inside" in line for line in asking.stdout)


def test_a_run_is_watched_to_its_end(federation: Build, capfd: pytest.CaptureFixture[str]) -> None:
    """Even to an end that comes at the same moment for all."""
    made = federation(LONG, rounds=8)
    with ThreadPoolExecutor(1) as started:
        # None is there when the first questions are asked.
        starting = started.submit(lambda: (time.sleep(0.5), made.start()))
        assert main(["watch", str(made.directory / "federation.yaml")]) == 0
        starting.result()
    assert made.wait() == dict.fromkeys(made.ids, 0)
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert "peer0 does not answer: connection refused" in lines
    assert any(line.startswith("round 8/8, mean matched accuracy 0.") for line in lines), lines
    rows = [line.split()[:3] for line in lines if line.startswith("peer") and " done " in line]
    assert rows == [[id, "done", "8/8"] for id in made.ids]


def test_ctrl_c_ends_the_view_and_not_the_peers(federation: Build, commands: Commands) -> None:
    made = federation(LONG, patience=600)
    made.start("peer0", "peer1")  # and so they wait, and take no time
    made.await_event("peer0", "waiting")
    arguments = ["-m", "launcher.cli", "watch", str(made.directory / "federation.yaml")]
    with commands.command(arguments, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as view:
        assert view.stdout
        for line in view.stdout:
            if line.startswith("peer2 does not answer"):
                break
        made.peers["peer1"].signal(signal.SIGKILL)
        for line in view.stdout:
            if "peer1 does not answer: " in line:
                break
        view.send_signal(signal.SIGINT)
        rest = view.stdout.read()
        assert view.wait(20) == 130
    assert rest.endswith("The peers keep running.\n")
    assert made.peers["peer0"].running
