"""The fork server with tiny children: exit codes, logs, signals, nobody left behind."""

import asyncio
import os
import signal
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from interpreter import Commands
from real_peers import all_gone, until

from launcher.engines.local import ForkServer, ServerProcess, fork_server
from peer.errors import FailedError

HERE = Path(__file__).parent


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ForkServer]:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    async with fork_server(ServerProcess.spawned("fake_children:main", (), 0.5)) as server:
        yield server


def said(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text()


async def log_says(log: Path, text: str) -> None:
    for _ in range(1000):
        if said(log, text):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{log} never said {text!r}")


async def run(server: ForkServer, tmp_path: Path, *argv: str) -> tuple[int, str]:
    log = tmp_path / "log.txt"
    process = await server.start(argv, log)
    return await process.wait(), log.read_text()


@pytest.mark.parametrize("code", [0, 1, 2, 143])
async def test_exit_code_is_the_entrys(server: ForkServer, tmp_path: Path, code: int) -> None:
    assert await run(server, tmp_path, "exit", str(code)) == (code, "")


async def test_uncaught_exception_is_a_traceback_in_the_log_and_exit_1(server: ForkServer, tmp_path: Path) -> None:
    code, log = await run(server, tmp_path, "raise")
    assert code == 1
    assert log.startswith("Traceback")
    assert log.endswith("RuntimeError: a child's own mistake\n")


async def test_system_exit_with_a_message(server: ForkServer, tmp_path: Path) -> None:
    assert await run(server, tmp_path, "leave", "no such luck") == (1, "no such luck\n")


async def test_output_is_appended_and_the_environment_is_the_given_one(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    process = await server.start(["say"], log, env={"COLOUR": "mauve"})
    assert await process.wait() == 0
    assert log.read_text().splitlines() == [
        "before",
        "on stdout mauve",
        "on stderr ['dfl-peer', 'say']",
    ]


async def test_child_has_a_session_of_its_own(server: ForkServer, tmp_path: Path) -> None:
    process = await server.start(["self", "session"], tmp_path / "log")
    assert await process.wait() == process.pid % 200


async def test_signals(server: ForkServer, tmp_path: Path) -> None:
    polite = await server.start(["polite"], tmp_path / "polite")
    asleep = await server.start(["sleep"], tmp_path / "asleep")
    await log_says(tmp_path / "polite", "polite")
    assert polite.returncode is None
    polite.signal(signal.SIGTERM)
    assert await polite.wait() == 143
    asleep.signal(signal.SIGKILL)
    assert await asleep.wait() == -9
    asleep.signal(signal.SIGKILL)  # ended: nothing happens, and the server still answers
    assert (await run(server, tmp_path, "exit", "3"))[0] == 3


async def test_thirty_children(server: ForkServer, tmp_path: Path) -> None:
    processes = await asyncio.gather(*(server.start(["exit", str(n)], tmp_path / f"{n}") for n in range(30)))
    assert await asyncio.gather(*(process.wait() for process in processes)) == list(range(30))


async def test_log_that_cannot_be_opened(server: ForkServer, tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="No such file or directory"):
        await server.start(["exit", "0"], tmp_path / "nowhere" / "log")
    assert (await run(server, tmp_path, "exit", "0"))[0] == 0


async def test_leaving_the_block_ends_the_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    async with fork_server(ServerProcess.spawned("fake_children:main", (), 0.3)) as server:
        names = ("polite", "stubborn", "sleep")
        processes = [await server.start([name], tmp_path / name) for name in names]
        await log_says(tmp_path / "stubborn", "stubborn")
        await log_says(tmp_path / "polite", "polite")
    all_gone([server.pid, *(process.pid for process in processes)], seconds=0)


async def test_fork_server_killed_under_its_children(server: ForkServer, tmp_path: Path) -> None:
    process = await server.start(["sleep"], tmp_path / "log")
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(FailedError, match="fork server ended"):
        await process.wait()
    with pytest.raises(FailedError, match="fork server ended"):
        await asyncio.wait_for(server.start(["exit", "0"], tmp_path / "other"), 5)
    all_gone([process.pid], seconds=60)


async def test_entry_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with fork_server(ServerProcess.spawned("no_such_module:main", ())) as server:
        with pytest.raises(FailedError, match="fork server ended"):
            await server.start(["exit", "0"], tmp_path / "log")
    assert "no_such_module" in capfd.readouterr().err


LAUNCHER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from launcher.engines.local import ServerProcess, fork_server

    async def main():
        process = getattr(ServerProcess, sys.argv[1])("fake_children:main", (), 0.5)
        async with fork_server(process) as server:
            started = [await server.start([name], Path(sys.argv[2]) / name) for name in ("sleep", "stubborn", "tells")]
            print(server.pid, *(process.pid for process in started), flush=True)
            await asyncio.sleep(60)

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("also_the_fork_server", [False, True])
@pytest.mark.parametrize("made", ["spawned", "forked"])
def test_launcher_killed_leaves_nobody(
    tmp_path: Path, commands: Commands, made: str, also_the_fork_server: bool
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    with commands.command(["-c", LAUNCHER, made, str(tmp_path)], env=environment) as launcher:
        assert launcher.stdout is not None
        pids = [int(word) for word in launcher.stdout.readline().split()]
        assert len(pids) == 4
        until(lambda: said(tmp_path / "tells", "tells"), 30, "it can hear")
        if also_the_fork_server:
            os.kill(pids[0], signal.SIGKILL)
        launcher.kill()
    all_gone(pids, seconds=60)
    assert (tmp_path / "tells").read_text() == "tells\nSIGINT\n"  # after SIGTERM a peer may leave the others for good
