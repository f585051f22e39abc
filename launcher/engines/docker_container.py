"""One peer in a container, from its start to its end, as the Docker engine reports it.

Three things are followed. The engine's events, in a thread of its own, only say that something happened; the state is
looked up each time, as events get lost while an engine restarts. The container's output is copied into the peer's
log.txt in another thread, from the first line that is missing there. And the container itself: the engine restarts a
peer that crashed, unless the peer has said that it cannot go on.

Whatever the engine refuses is reported as one sentence with a hint (`refusals`). The SDK is an optional extra and is
imported where it is used.
"""

import asyncio
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from errno import EDQUOT, EIO, ENOSPC, EROFS
from pathlib import Path
from time import time_ns
from typing import Any

from launcher.engines.base import Process
from peer.errors import FailedError, InputError, optional
from peer.files import write_failure
from peer.process import REFUSED, STOPPED, container_exit_code
from peer.telemetry.results import gave_up

BUILD = "docker build -f deploy/Dockerfile -t dfl ."
CLASHES = ("Pool overlaps", "address pools have been fully subnetted", "non-overlapping IPv4")
NO_GPU = ("could not select device driver", "nvidia-container-cli")


def docker_sdk() -> Any:
    """Return the imported SDK. Raises InputError if it is not installed."""
    return optional("docker", "`--on docker`", "the Docker SDK", "docker")


def connect() -> Any:
    """Return a client of this machine's engine. Raises InputError if none answers, or if it is another machine's."""
    docker = docker_sdk()
    try:
        # One connection per peer for its log; a pool that is too small complains on stderr.
        client = docker.from_env(version="auto", timeout=120, max_pool_size=1000)
    except docker.errors.DockerException as error:
        raise InputError(_unreachable(str(error))) from None
    if not client.api.base_url.startswith("http+docker://"):
        raise InputError(
            "DOCKER_HOST is another machine, which cannot see the run's directory; unset it, or run dfl-launch there"
        )
    return client


def _unreachable(said: str) -> str:
    if "PermissionError" in said or "Permission denied" in said:
        return (
            "you may not use the Docker engine: its socket is closed to you; join the group that owns it "
            "(`sudo usermod -aG docker $USER`, then log in again)"
        )
    return (
        f"no Docker engine answers here ({_short_reason(said)}); start it (`sudo systemctl start docker`), or name its "
        "socket in DOCKER_HOST"
    )


def _short_reason(said: str) -> str:
    for part in ("No such file or directory", "Connection refused", "timed out", "Name or service not known"):
        if part in said:
            return part.lower()
    return said.rpartition(":")[2].strip(" ')\"")


def engine_errors() -> tuple[type[Exception], ...]:
    """What the SDK raises where the engine refuses, or does not answer."""
    import requests

    return docker_sdk().errors.DockerException, requests.RequestException, OSError


@contextmanager
def refusals() -> Iterator[None]:
    """Raise FailedError for what the engine refuses inside the block."""
    docker = docker_sdk()
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise FailedError(no_image((error.explanation or str(error)).rpartition(": ")[2])) from None
    except docker.errors.APIError as error:
        raise FailedError(refusal_in_words(str(error.explanation or error))) from None
    except engine_errors() as error:
        raise FailedError(f"the Docker engine no longer answers ({_short_reason(str(error))})") from None


def no_image(name: str) -> str:
    return f"the Docker engine has no image `{name}`; build it with `{BUILD}`, or name another with --option image=NAME"


def refusal_in_words(said: str) -> str:
    """Return the engine's reason, and what to do about it where that is known."""
    if any(clash in said for clash in CLASHES):
        return (
            f"the run's network cannot be made: {said}; name addresses that are free with "
            "--option subnet=10.99.0.0/24, or remove old networks with `docker network prune`"
        )
    if any(words in said for words in NO_GPU):
        return f"the Docker engine cannot give a container a GPU ({said}); install the NVIDIA Container Toolkit"
    return f"the Docker engine refused: {said}"


RUN, PEER, ORDER = "dfl.run", "dfl.peer", "dfl.order"
"""Labels: the run's directory, the peer's id, and a digest of what the container was made with."""


def restart_policy(restarts: int) -> dict[str, Any]:
    """The restart policy for so many restarts; the engine would take a count of 0 for no limit."""
    return {"Name": "on-failure", "MaximumRetryCount": restarts} if restarts else {"Name": "no"}


ENGINE_TIMEOUT_S, RETRY_INTERVAL_S = 60.0, 0.5
"""Seconds for which an engine that does not answer is asked again, and between two attempts."""


@dataclass(frozen=True)
class ContainerEvent:
    """What happened to a peer's container, with the exit code if it died. Without a peer: perhaps something to any."""

    peer: str
    what: str
    code: int = 0


class ContainerEvents:
    """The events of an engine, which may restart meanwhile: what happened then is not reported."""

    def __init__(self, client: Any, label: dict[str, str]) -> None:
        self._client, self._filters = client, {"type": "container", **label}
        self._since = int(time.time())
        self._stream: Any = None
        self._over = False

    async def follow(self) -> AsyncIterator[ContainerEvent]:
        """Never ends. Raises FailedError once the engine no longer answers."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[ContainerEvent | None]()

        def put(event: ContainerEvent | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, event)

        threading.Thread(target=self._listen, args=(put,), name="docker events", daemon=True).start()
        try:
            while event := await queue.get():
                yield event
            raise FailedError("the Docker engine no longer answers; its peers may keep running without the launcher")
        finally:
            self._over = True
            end_stream(self._stream)

    def _listen(self, put: Any) -> None:
        answered = time.monotonic()
        while not self._over and time.monotonic() - answered < ENGINE_TIMEOUT_S:
            with suppress(*engine_errors()):
                self._client.ping()
                answered = time.monotonic()
                self._stream = self._client.events(since=self._since, filters=self._filters, decode=True)
                put(ContainerEvent("", "reconnect"))
                for event in self._stream:
                    attributes = event.get("Actor", {}).get("Attributes", {})
                    what, code = event.get("Action", ""), int(attributes.get("exitCode", 0))
                    put(ContainerEvent(attributes.get(PEER, ""), what, code))
                    self._since = event.get("time", self._since)
            time.sleep(RETRY_INTERVAL_S)  # an engine that is back does not report it
        put(None)


def end_stream(stream: Any) -> None:
    """Let the thread go on that reads it."""
    with suppress(OSError, AttributeError, ValueError):  # there may be none
        stream.close()


MAX_LOG_BYTES = 5 << 20
"""The most bytes of log.txt; then it is moved aside, as for local peers, and one older file is kept."""
DISK_ERRORS = (ENOSPC, EDQUOT, EIO, EROFS)
"""Faults of this machine's disk; any other a container may have caused in its own log."""
LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)
"""The engine begins a line with the time it was written."""


class ContainerLog:
    """Follows a container in a thread of its own, from the first line that log.txt does not have.

    The file's modification time is that of its last line, so that a later launcher knows where to continue.
    """

    def __init__(self, container: Any, path: Path, failed: Callable[[], None] = lambda: None) -> None:
        self._container, self._path, self._failed = container, path, failed
        self._aside = path.with_name(f"{path.name}.1")
        self.why = ""
        """Why the file can no longer be written; `failed` is called then. Empty while it can."""
        self._stream: Any = None
        self._more, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._follow, name=f"log of {container.name}", daemon=True)

    def follow(self) -> None:
        self.more()
        self._thread.start()

    def catch_up(self) -> None:
        """Copy the rest of what an ended container has written."""
        self._over = True
        self._copy()

    def more(self) -> None:
        """Continue: the container may have been restarted."""
        self._more.set()

    def end(self) -> None:
        """Wait until all that an ended container has written is in the file."""
        self._over = True
        self._more.set()
        self._thread.join()

    def close(self) -> None:
        """Stop following a container that keeps running."""
        self._over = True
        self._more.set()
        end_stream(self._stream)

    def _follow(self) -> None:
        over = False
        while not over:
            self._more.wait()
            self._more.clear()
            over = self._over
            try:
                with suppress(*engine_errors()):
                    self._copy()
            except FailedError as error:
                self.why = str(error)
                self._failed()
                return

    def _copy(self) -> None:
        last = self._last()
        # A float has no nanoseconds, which the engine's times have: ask for a little more, leave out what is known.
        since = last / 1e9 - 0.001 if last else None
        self._stream = self._container.logs(stream=True, follow=not self._over, timestamps=True, since=since)
        rest = b""
        for chunk in self._stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                last = self._write(line, last)
        if rest:
            self._write(rest, last)

    def _last(self) -> int:
        """Return when the newest line here was written, in nanoseconds; 0 if there is none."""
        for path in (self._path, self._aside):
            with suppress(FileNotFoundError):
                return path.lstat().st_mtime_ns
        return 0

    def _write(self, line: bytes, last: int) -> int:
        """Append a line that is newer than `last`, nanoseconds. Return the time of the newest line."""
        if not (found := LINE.fullmatch(line)):
            return last
        seconds = datetime.fromisoformat(f"{found[1].decode()}+00:00").timestamp()
        time = int(seconds) * 1_000_000_000 + int((found[2] or b"0").ljust(9, b"0"))
        if time <= last:
            return last
        try:
            self._append(found[3], time)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise FailedError(write_failure(self._path, error)) from None
        return time

    def say(self, sentence: str) -> None:
        """Add a line that the peer itself could not write any more."""
        with suppress(OSError):
            self._append(sentence.encode(), time_ns())

    def _append(self, line: bytes, time: int) -> None:
        # The container could have put a link there.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with open(descriptor, "ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.utime(descriptor, ns=(time, time))
            size = file.tell()
        if size > MAX_LOG_BYTES:
            self._path.replace(self._aside)


OUT_OF_MEMORY = "the container had no memory left; give its peer more with --option memory=4g"


class Container(Process):
    """The engine's events wake `wait`, which looks up the state each time.

    restarts: how often the engine may restart it.
    """

    def __init__(self, handle: Any, out: Path, restarts: int) -> None:
        self._handle, self._out, self._allowed = handle, out, restarts
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._log = ContainerLog(handle, out / "log.txt", self._wake)
        self._reported = False
        self._earlier = 0
        """Restarts before the container was last started from here, which the engine does not count."""
        self._verdict: int | None = None
        self._ending = False
        self._sending = set[asyncio.Future[None]]()
        self._log.follow()

    def on_event(self, event: ContainerEvent) -> None:
        if event.what != "die":
            self._log.more()
        elif self._verdict is None and self._decided(event.code):
            self._verdict = event.code  # the engine restarts it all the same
        self._changed.set()

    async def wait(self) -> int:
        """Wait for the exit code; FailedError, once, also if its log can no longer be written here."""
        while True:
            self._changed.clear()
            with refusals():
                code = await self._ended()
            if code is not None:
                await asyncio.to_thread(self._log.end)
                if self._handle.attrs["State"].get("OOMKilled"):
                    self._log.say(OUT_OF_MEMORY)
                return container_exit_code(code)
            if self._log.why and not self._reported:
                self._reported = True
                raise FailedError(self._log.why)
            await self._changed.wait()

    def signal(self, number: int) -> None:
        self._ending = True
        sent = asyncio.ensure_future(asyncio.to_thread(self._send, number))
        self._sending.add(sent)
        sent.add_done_callback(self._sending.discard)

    def _wake(self) -> None:
        """Called by the thread of the log."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._changed.set)

    async def close(self) -> None:
        """Stop following the container."""
        await asyncio.gather(*self._sending)
        await asyncio.to_thread(self._log.close)

    async def _ended(self) -> int | None:
        await asyncio.to_thread(self._look)
        state, restarts = self._handle.attrs["State"], self._handle.attrs["RestartCount"]
        status, code = state["Status"], int(state["ExitCode"])
        if self._verdict is None:
            self.restarts = self._earlier + restarts
        if status not in ("exited", "dead"):
            if self._verdict is not None or (self._ending and status == "restarting"):
                await asyncio.to_thread(self._stop)
                self._changed.set()
            return None
        if self._verdict is None and self._killed_externally(code) and restarts < self._allowed:
            self._earlier += restarts + 1
            await asyncio.to_thread(self._handle.start)
            return None
        return code if self._verdict is None else self._verdict

    def _killed_externally(self, code: int) -> bool:
        """Whether `docker kill` has ended it, after which the engine does not restart it."""
        return not (self._ending or code == 0 or code in STOPPED or self._decided(code))

    def _decided(self, code: int) -> bool:
        """Whether the peer itself has decided that a restart would not help; by refusing at the first start only."""
        if code in REFUSED and not self.restarts:
            return True
        return code != 0 and gave_up(self._out)

    def _look(self) -> None:
        try:
            self._handle.reload()
        except docker_sdk().errors.NotFound:
            raise FailedError(f"the container {self._handle.name} was removed; the same command resumes it") from None

    def _stop(self) -> None:
        """Stop it for good: the engine would restart it."""
        self._handle.update(restart_policy=restart_policy(0))
        self._handle.stop(timeout=1)

    def _send(self, number: int) -> None:
        with suppress(docker_sdk().errors.APIError):  # it has ended, or an event is about to say so
            self._handle.kill(signal=int(number))
