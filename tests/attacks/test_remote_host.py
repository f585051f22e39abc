"""What a host of `--on ssh` can do to the machine of the launcher, which follows it and fetches its files.

The SSH server is a real one, in this process; what it says of its files is not what they are.
"""

import asyncio
import base64
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter, ValidationError

from launcher.engines import ssh
from launcher.engines.base import Run
from launcher.engines.programs.ssh_host import place
from launcher.engines.ssh import collect_files, wanted_files, where_models_go
from launcher.engines.ssh_connection import Agent, HostConnection, Placed, RemotePeer
from launcher.engines.ssh_hosts import Host, Placement
from launcher.reports.peer_files import AuditedRound
from launcher.reports.summary_json import PeerSummary, Summary
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.learning.export import HeaderStandardisation, ModelFileHeader
from peer.spec.loading import load_spec
from peer.spec.recordings import RunIdentity
from peer.tasks import background
from peer.telemetry.events import CLASSES_BY_NAME
from peer.telemetry.results import WANTED, FinalFigures, ModelFigures, Result, traced

asyncssh = pytest.importorskip("asyncssh")

GIGABYTES = 0.001
MOST = 10**6
HOST = Host(host="lab0", gigabytes=GIGABYTES)
TREE = {"result.json": b"{}", traced(1): b"1", traced(2): b"2", "trace/other": b"no", "checkpoint/1": b"no"}
"""What an honest peer has left, and more."""


class Hostile(asyncssh.SFTPServer):  # type: ignore[misc]
    """Its directories list what leads out of any; its files are larger than they say, and some have no end."""

    endless = ""
    """The end of a path."""

    async def scandir(self, path: bytes) -> AsyncIterator[Any]:
        for name in (b"../../outside", b"/tmp/outside", b"round-0001.safetensors/../../../outside", b"..", b"a\nb"):
            yield asyncssh.SFTPName(name, attrs=asyncssh.SFTPAttrs(size=1, permissions=0o100666))

    def stat(self, path: bytes) -> Any:
        return asyncssh.SFTPAttrs(size=1, permissions=0o100666)

    lstat = stat

    def fstat(self, file_obj: Any) -> Any:
        return self.stat(b"")

    def read(self, file_obj: Any, offset: int, size: int) -> bytes:
        if self.endless and file_obj.name.decode().endswith(self.endless):
            return bytes(size)
        return cast(bytes, super().read(file_obj, offset, size))


@asynccontextmanager
async def connected(served: type[Hostile]) -> AsyncIterator[Any]:
    """A link to such a host."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    mine = asyncssh.generate_private_key("ssh-ed25519")
    allowed = asyncssh.import_authorized_keys(mine.export_public_key().decode())
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[key], authorized_client_keys=allowed, sftp_factory=served
    )
    to = {"port": server.get_port(), "known_hosts": None, "config": (), "username": "me", "client_keys": [mine]}
    async with asyncssh.connect("127.0.0.1", agent_path=None, **to) as connection:

        async def agent() -> Any:
            return SimpleNamespace(connection=connection)

        yield SimpleNamespace(host=HOST, agent_within=agent)
    server.close()
    await server.wait_closed()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A peer's directory on the host."""
    for name, content in TREE.items():
        path = tmp_path / "host" / "peer0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "host" / "peer0"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The peer's directory here."""
    out = tmp_path / "run" / "peer0"
    out.mkdir(parents=True)
    return out


@pytest.fixture
def wanted(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "federation.yaml").write_text("{protocol: fedavg, rounds: 3, trace: true, data: digits}")
    return wanted_files(traced_run(tmp_path / "federation.yaml"), HOST)


def traced_run(federation: Path) -> Run:
    return Run(load_spec(federation, peers=3), RunFiles(federation.parent))


def all_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


async def test_of_what_a_host_lists_nothing_is_fetched(there: Path, out: Path, wanted: tuple[str, ...]) -> None:
    """Only what a peer leaves, by names that are known here."""
    before = all_in(there.parents[1])
    async with connected(Hostile) as link:
        await collect_files(link, str(there), out, wanted)
    assert all_in(out) == {"result.json", traced(1), traced(2)}
    assert (out / "result.json").read_bytes() == b"{}"
    assert all_in(there.parents[1]) - before == {f"run/peer0/{name}" for name in all_in(out)}


async def test_a_host_that_leaves_its_models_is_asked_for_none(there: Path, out: Path, tmp_path: Path) -> None:
    """Nor for traces, which hold what was trained. Who starts the run is told of either."""
    (tmp_path / "federation.yaml").write_text("{protocol: fedavg, rounds: 3, trace: true, data: digits}")
    host = HOST.model_copy(update={"models": "leave"})
    (there / "model.safetensors").write_bytes(b"a head")
    async with connected(Hostile) as link:
        await collect_files(link, str(there), out, wanted_files(traced_run(tmp_path / "federation.yaml"), host))
    assert all_in(out) == {"result.json"}
    assert where_models_go([host]) == "the models stay on lab0"
    assert "the models on lab0, heads included, are copied to this machine; `models: leave`" in where_models_go([HOST])


@pytest.mark.parametrize("endless", ["result.json", "round-0002.safetensors"])
async def test_a_file_without_end_fills_no_disk(
    there: Path, out: Path, wanted: tuple[str, ...], endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hostile, "endless", endless)
    (out / "result.json").write_bytes(b"of before")
    async with connected(Hostile) as link:
        with pytest.raises(
            FailedError, match=r"^lab0: .*/peer0 comes to more than 0.001 GB; see what it is, and raise"
        ):
            await collect_files(link, str(there), out, wanted)
    left = {"result.json"} if endless == "result.json" else {"result.json", traced(1)}
    assert all_in(out) == left
    assert (out / "result.json").read_bytes() == (b"of before" if endless == "result.json" else b"{}")


async def test_many_files_are_not_more_than_one(there: Path, out: Path, wanted: tuple[str, ...]) -> None:
    for name in WANTED:
        (there / name).write_bytes(bytes(MOST // 3))
    async with connected(Hostile) as link:
        with pytest.raises(FailedError, match="comes to more than"):
            await collect_files(link, str(there), out, wanted)
    assert sum((out / name).stat().st_size for name in all_in(out)) <= MOST


async def test_a_link_laid_out_here_is_not_followed(there: Path, out: Path, tmp_path: Path) -> None:
    (out / ".result.json.part").symlink_to(tmp_path / "elsewhere")
    (out / "result.json").symlink_to(tmp_path / "elsewhere")
    async with connected(Hostile) as link:
        await collect_files(link, str(there), out)
    assert (out / "result.json").read_bytes() == b"{}"
    assert not (tmp_path / "elsewhere").exists()


class Liar:
    """What runs on the host gives this answer to each order."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer, self._orders = answer, asyncio.Queue[int]()
        self.stdin, self.stdout = self, self._answers()

    def write(self, order: bytes) -> None:
        self._orders.put_nowait(json.loads(order)["order"])

    async def _answers(self) -> AsyncIterator[bytes]:
        while True:
            yield json.dumps({"answer": await self._orders.get(), **self._answer}).encode() + b"\n"


@asynccontextmanager
async def asked(answer: Any, **more: Any) -> AsyncIterator[Agent]:
    one = Agent(HOST, cast(Any, None), cast(Any, Liar({"result": answer, **more})))
    async with background() as tasks:
        tasks.create_task(one.listen(lambda _: None))
        yield one


RUN = {"owner": "me@desk:/runs/mine", "token": "1"}


@pytest.fixture
def honest(tmp_path: Path) -> dict[str, Any]:
    return place(str(tmp_path / "dfl" / "mine"), RUN, ["peer0"], {"federation.yaml": "text"})


async def test_what_an_honest_host_answers_is_taken_as_it_is(honest: dict[str, Any]) -> None:
    async with asked(honest) as one:
        assert await one.ask("place") == honest
        assert await one.ask("survey") == {key: value for key, value in honest.items() if key != "root"}


def lies(honest: dict[str, Any]) -> Iterator[Any]:
    yield from (None, {}, [], "text", 0)
    yield from ({**honest, key: {"a": []}} for key in honest.keys() - {"time"})
    yield from ({other: honest[other] for other in honest if other != key} for key in honest)
    yield from (
        {**honest, **wrong}
        for wrong in ({"codes": {"peer0": "x"}}, {"codes": {"peer0": 256}}, {"running": [{}]}, {"free": -1})
    )


@pytest.mark.parametrize("refused", [{}, {"refused": None}, {"refused": ["\x1b[31m"]}])
async def test_a_host_that_answers_an_order_in_another_form_is_named(
    honest: dict[str, Any], refused: dict[str, Any]
) -> None:
    for lie in [None] if refused else lies(honest):
        async with asked(lie, **refused) as one:
            link = HostConnection(HOST, "dfl/mine", print)
            link._agent.set_result(one)
            with pytest.raises(FailedError, match=r"^lab0: it answers `place` as dfl never does; see what"):
                await link.ask_within("place")


@pytest.mark.parametrize("lie", [{"running": ["peer1"]}, {"codes": {"peer0": 0, "peer1": 0}}])
async def test_a_host_that_answers_for_peers_of_others_is_named(honest: dict[str, Any], lie: dict[str, Any]) -> None:
    async with asked({**honest, "running": ["peer0"]}) as one:
        await one.ask("place", ids=["peer0"])
    async with asked({**honest, **lie}) as one:
        link = HostConnection(HOST, "dfl/mine", print)
        link._agent.set_result(one)
        with pytest.raises(FailedError, match=r"^lab0: it answers for peers of other hosts"):
            await link.ask_within("place", ids=["peer0"])


@pytest.mark.parametrize("lie", [None, {}, ["cuda"]])
async def test_before_the_start_too(lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "federation.yaml").write_text("{protocol: fedavg, data: digits}")
    run = replace(traced_run(tmp_path / "federation.yaml"), device="cuda")
    places = {id: Placement(id, HOST, None, "0.0.0.0:1") for id in run.spec.ids}

    @asynccontextmanager
    async def met(_: object) -> AsyncIterator[Any]:
        async with asked(lie) as one:
            yield {"lab0": one}, {}

    monkeypatch.setattr(ssh, "probe_hosts", met)
    with pytest.raises(InputError, match=r"^lab0: it answers `survey`"):
        await ssh.check_hosts(run, places, install=False)
    async with asked(lie) as one:
        problems = await ssh.device_problems(run, {"lab0": one}, {"lab0": {"dfl": version("dfl")}})
    assert problems == ["lab0: it answers `device` as dfl never does; see what its `python` runs"] * (lie is not None)


def file(name: Any = "log.txt", at: Any = 0, data: Any = b"said\n") -> dict[str, Any]:
    data = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return {"peer": "peer0", "file": name, "at": at, "data": data}


NONSENSE: list[Any] = [
    *(file(name) for name in ("../log.txt", "/tmp/outside", "result.json", "", None, ["log.txt"])),
    *(file(at=at) for at in (-1, 6, 2**62, "0", None, 0.5)),
    *(file(data=data) for data in ("a", "!" * 8, 5, None, ["x"])),
    *(17, [], "text", None, {"peer": ["peer0"]}, {"peer": "peer0"}, {"answer": {}}, {"answer": [1], "result": 0}),
    *({"peer": "peer0", "ended": code} for code in ("0", None, [0], 0.5, 256, -(10**4200))),
    {"answer": 10**6, "result": 0},
]


def lines(*notices: Any) -> Iterator[bytes]:
    yield from (json.dumps(notice).encode() + b"\n" for notice in notices)


@pytest.fixture
async def following(out: Path) -> Callable[..., Any]:
    """following(*lines): a peer that was followed through what a host says."""

    async def follow(*said: bytes) -> RemotePeer:
        async def stdout() -> AsyncIterator[bytes]:
            for line in said:
                yield line

        peer = RemotePeer("peer0", HOST, out, lambda: None)
        process = cast(Any, SimpleNamespace(stdout=stdout()))
        await Agent(HOST, cast(Any, None), process).listen(peer.on_notice)
        return peer

    return follow


async def test_what_no_launchers_own_program_says_is_passed_over(following: Callable[..., Any], out: Path) -> None:
    deep = b"[" * 100_000 + b"\n"
    peer = await following(*lines(file()), *lines(*NONSENSE), b"\xff\n", deep, *lines(file(at=5, data=b"more\n")))
    assert not peer.ended
    assert all_in(out.parents[1]) == {"run/peer0/log.txt"}
    assert (out / "log.txt").read_bytes() == b"said\nmore\n"


@pytest.mark.parametrize("name", ["events.jsonl", "log.txt"])
async def test_a_log_without_end_fills_no_disk(following: Callable[..., Any], out: Path, name: str) -> None:
    """The launcher is told once, and goes on to hear of the peer's end."""
    part, count = bytes(100_000), 30
    peer = await following(*lines(*(file(name, number * len(part), part) for number in range(count))))
    assert (out / name).stat().st_size == MOST
    with pytest.raises(FailedError, match=f"^lab0: {name} of peer0 comes to more than 0.001 GB; see what it is"):
        await peer.wait()
    peer.on_notice({"peer": "peer0", "ended": 0})
    assert await peer.wait() == 0
    assert os.listdir(out) == [name]


KINDS = (
    *(Result, FinalFigures, ModelFigures, *CLASSES_BY_NAME.values(), AuditedRound, Summary, PeerSummary),
    *(RunIdentity, ModelFileHeader, HeaderStandardisation, Placed),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_of_a_record_full_of_errors_few_are_told(kind: type) -> None:
    """All those of two megabytes took seconds and 300 MB of memory."""
    adapter, many = TypeAdapter(kind), {str(number): [[]] for number in range(2000)}
    inherited = (getattr(one, "__annotations__", {}) for one in kind.__mro__)
    names = {*itertools.chain.from_iterable(inherited), "for"}
    for name, wrong in itertools.product(names, ([*many.values()], many)):
        for given in (wrong, [wrong], {"": wrong}):
            assert max(errors(adapter, {name: one}) for one in (given, json.dumps(given))) < 300, name


def errors(adapter: TypeAdapter[Any], given: object) -> int:
    try:
        adapter.validate_python(given)
    except ValidationError as error:
        return error.error_count()
    return 0


READS_ONE = """
import sys
from pathlib import Path
from resource import RLIMIT_DATA, setrlimit
from peer.telemetry.results import read_result
setrlimit(RLIMIT_DATA, (200 << 20, 200 << 20))
print(read_result(Path(sys.argv[1])))
"""


def test_a_result_full_of_errors_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(f'{{"history": [{{"more": [{",".join(["[]"] * 700_000)}]}}]}}')
    command = [sys.executable, "-c", READS_ONE, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.stdout == "None\n", told.stderr[-300:]
