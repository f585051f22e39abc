"""One peer in a container, from its start to its end, as the Docker engine tells of it.

Three things are followed. The engine's events, in a thread of its own, say that something happened; what is so is
looked up each time, as events get lost while an engine is started anew. The container's output is brought into the
peer's log.txt in another thread, from the first line that it does not have. And the container itself: the engine starts
a peer that crashed again, unless the peer has said that it cannot go on.

Whatever the engine refuses comes out as one sentence with the way out (`refusals`). The SDK is an optional extra and is
imported where it is used.
"""

import asyncio
import importlib
import os
import re
import signal
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

from launcher.engines.base import Process, last_event
from peer.errors import FailedError, InputError
from peer.files import write_failure
from peer.process import WRONG_INPUT
from peer.telemetry.events import Failed
from peer.telemetry.results import EVENTS

BUILD = "docker build -f deploy/Dockerfile -t dfl ."
CLASHES = ("Pool overlaps", "address pools have been fully subnetted", "non-overlapping IPv4")
NO_GPU = ("could not select device driver", "nvidia-container-cli")


def docker_sdk() -> Any:
    """The imported SDK; InputError when it is not installed."""
    try:
        return importlib.import_module("docker")
    except ImportError as error:
        raise InputError(
            f"`--on docker` needs the Docker SDK, which cannot be imported here ({error}); install it with: "
            "pip install -c constraints.txt 'dfl[docker]'"
        ) from error


def connect() -> Any:
    """A client of this machine's engine; InputError where none answers, or where it is another machine's."""
    docker = docker_sdk()
    try:
        # One connection a peer for its log; a pool that is too small complains on stderr.
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


@contextmanager
def refusals() -> Iterator[None]:
    """FailedError for what the engine refuses inside the block."""
    docker = docker_sdk()
    import requests

    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise FailedError(_no_image(error.explanation or str(error))) from None
    except docker.errors.APIError as error:
        raise FailedError(refusal_in_words(str(error.explanation or error))) from None
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise FailedError(f"the Docker engine does not answer any more ({_short_reason(str(error))})") from None


def no_image(name: str) -> str:
    return f"the Docker engine has no image `{name}`; build it with `{BUILD}`, or name another with --option image=NAME"


def _no_image(said: str) -> str:
    return no_image(said.rpartition(": ")[2])


def refusal_in_words(said: str) -> str:
    """What the engine said, and what to do about it where that is known."""
    if any(clash in said for clash in CLASHES):
        return (
            f"the run's network cannot be made: {said}; name addresses that are free with "
            "--option subnet=10.99.0.0/24, or remove old networks with `docker network prune`"
        )
    if any(words in said for words in NO_GPU):
        return f"the Docker engine cannot give a container a GPU ({said}); install the NVIDIA Container Toolkit"
    return f"the Docker engine refused: {said}"


RUN, PEER, ORDER = "dfl.run", "dfl.peer", "dfl.order"
"""Labels: the run's directory, the peer's id, and what was asked for."""


def restart_policy(restarts: int) -> dict[str, Any]:
    """A count of 0 would be without end."""
    return {"Name": "on-failure", "MaximumRetryCount": restarts} if restarts else {"Name": "no"}


PATIENCE, PAUSE = 60.0, 0.5
"""Seconds for which an engine that does not answer is asked again, and between two attempts."""


@dataclass(frozen=True)
class ContainerEvent:
    """What happened to a peer's container; the exit code where it died. Without a peer: something may have, to any."""

    peer: str
    what: str
    code: int = 0


class ContainerEvents:
    """An engine that is started anew is heard again; what happened meanwhile nobody tells."""

    def __init__(self, client: Any, label: dict[str, str]) -> None:
        self._client, self._filters = client, {"type": "container", **label}
        self._since = int(time.time())
        self._stream: Any = None
        self._over = False

    async def heard(self) -> AsyncIterator[ContainerEvent]:
        """Without end; FailedError when the engine does not answer any more."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[ContainerEvent | None]()

        def put(news: ContainerEvent | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, news)

        threading.Thread(target=self._listen, args=(put,), name="docker events", daemon=True).start()
        try:
            while news := await queue.get():
                yield news
            raise FailedError("the Docker engine does not answer any more; its peers may go on without the launcher")
        finally:
            self._close()

    def _listen(self, put: Any) -> None:
        docker = docker_sdk()
        import requests

        answered = time.monotonic()
        while not self._over and time.monotonic() - answered < PATIENCE:
            with suppress(docker.errors.DockerException, requests.RequestException, OSError):
                self._client.ping()
                answered = time.monotonic()
                self._stream = self._client.events(since=self._since, filters=self._filters, decode=True)
                put(ContainerEvent("", "reconnect"))
                for event in self._stream:
                    put(_container_event(event))
                    self._since = event.get("time", self._since)
            time.sleep(PAUSE)  # nothing tells when an engine is there again
        put(None)

    def _close(self) -> None:
        self._over = True
        if self._stream is not None:
            with suppress(OSError, AttributeError, ValueError):
                self._stream.close()


def _container_event(event: dict[str, Any]) -> ContainerEvent:
    attributes = event.get("Actor", {}).get("Attributes", {})
    return ContainerEvent(attributes.get(PEER, ""), event.get("Action", ""), int(attributes.get("exitCode", 0)))


LARGEST = 5 << 20
"""Bytes of log.txt before it is moved aside, as a peer on this machine does it; one older file is kept."""
FULL = (ENOSPC, EDQUOT, EIO, EROFS)
"""What is the matter with this machine's disk; the rest a container can do to its own log."""
LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)
"""What the engine puts before a line: when it was written."""


class ContainerLog:
    """Follows a container in a thread of its own, from the first line that log.txt does not have.

    The file's time of change is that of its last line: so a later launcher, too, knows where to go on.
    """

    def __init__(self, container: Any, path: Path, failed: Callable[[], None] = lambda: None) -> None:
        self._container, self._path, self._failed = container, path, failed
        self.why = ""
        """Why it cannot be written any more, which `failed` is told of; empty while it can."""
        self._stream: Any = None
        self._more, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._follow, name=f"log of {container.name}", daemon=True)

    def follow(self) -> None:
        self._more.set()
        self._thread.start()

    def catch_up(self) -> None:
        """Takes in what an ended container has written."""
        self._over = True
        self._copy()

    def more(self) -> None:
        """The container may write again."""
        self._more.set()

    def end(self) -> None:
        """Waits until all that an ended container has written is in the file."""
        self._over = True
        self._more.set()
        self._thread.join()

    def close(self) -> None:
        """Stops following a container that goes on."""
        self._over = True
        self._more.set()
        if self._stream is not None:
            with suppress(OSError, AttributeError, ValueError):
                self._stream.close()

    def _follow(self) -> None:
        docker = docker_sdk()
        import requests

        over = False
        while not over:
            self._more.wait()
            self._more.clear()
            over = self._over
            try:
                with suppress(docker.errors.APIError, requests.RequestException, OSError):
                    self._copy()
            except FailedError as error:
                self.why = str(error)
                self._failed()
                return

    def _copy(self) -> None:
        last = self._last()
        # The engine's own count of seconds has nanoseconds, a float has not: ask for a little more, leave out what is
        # known.
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
        """When the newest line was written that there is, nanoseconds; 0 where there is none."""
        for path in (self._path, self._aside):
            with suppress(FileNotFoundError):
                return path.lstat().st_mtime_ns
        return 0

    @property
    def _aside(self) -> Path:
        return self._path.with_name(f"{self._path.name}.1")

    def _write(self, line: bytes, last: int) -> int:
        """Appends a line that is newer than `last`, nanoseconds; the time of the newest line."""
        if not (found := LINE.fullmatch(line)):
            return last
        seconds = datetime.fromisoformat(f"{found[1].decode()}+00:00").timestamp()
        time = int(seconds) * 1_000_000_000 + int((found[2] or b"0").ljust(9, b"0"))
        if time <= last:
            return last
        try:
            self._append(found[3], time)
        except OSError as error:
            if error.errno in FULL:
                raise FailedError(write_failure(self._path, error)) from None
        return time

    def say(self, sentence: str) -> None:
        """Adds a line to the file that the peer could not write any more."""
        with suppress(OSError):
            self._append(sentence.encode(), time_ns())

    def _append(self, line: bytes, time: int) -> None:
        # The container can put a link there.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with open(descriptor, "ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.utime(descriptor, ns=(time, time))
            size = file.tell()
        if size > LARGEST:
            self._path.replace(self._aside)


OUT_OF_MEMORY = "the container had no memory left; give its peer more with --option memory=4g"
ASKED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of a peer that was told to stop."""


@dataclass(frozen=True)
class ContainerState:
    """A container at one moment: how it ended, if it has, and how often the engine has started it again."""

    status: str
    code: int
    restarts: int

    @property
    def ended(self) -> bool:
        return self.status in ("exited", "dead")


class Container(Process):
    """Told of every start and death by the engine's events; what is so is looked up each time.

    restarts: how often the engine may start it again.
    """

    def __init__(self, handle: Any, out: Path, restarts: int) -> None:
        self._handle, self._out, self._allowed = handle, out, restarts
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._log = ContainerLog(handle, out / "log.txt", self._look_again)
        self._told = False
        self._earlier, self._count = 0, 0
        self._verdict: int | None = None
        self._ending = False
        self._sending = set[asyncio.Future[None]]()

    @property
    def restarts(self) -> int:
        return self._earlier + self._count

    def follow(self) -> None:
        self._log.follow()

    def heard(self, news: ContainerEvent) -> None:
        """Of one of the engine's events."""
        if news.what != "die":
            self._log.more()
        elif self._verdict is None and self._decided(news.code):
            self._verdict = news.code  # the engine starts it again all the same
        self._news.set()

    async def wait(self) -> int:
        """As every process; FailedError, once, also when its log cannot be written here any more."""
        while True:
            self._news.clear()
            with refusals():
                code = await self._ended()
            if code is not None:
                await asyncio.to_thread(self._log.end)
                if self._handle.attrs["State"].get("OOMKilled"):
                    self._log.say(OUT_OF_MEMORY)
                return code if code <= 128 or code in ASKED else 128 - code
            if self._log.why and not self._told:
                self._told = True
                raise FailedError(self._log.why)
            await self._news.wait()

    def signal(self, number: int) -> None:
        self._ending = True
        sent = asyncio.ensure_future(asyncio.to_thread(self._send, number))
        self._sending.add(sent)
        sent.add_done_callback(self._sending.discard)

    def _look_again(self) -> None:
        """From the thread of the log."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._news.set)

    async def close(self) -> None:
        """Leaves the container to itself."""
        await asyncio.gather(*self._sending)
        await asyncio.to_thread(self._log.close)

    async def _ended(self) -> int | None:
        look = await asyncio.to_thread(self._look)
        if self._verdict is None:
            self._count = look.restarts
        if not look.ended:
            if self._verdict is not None or (self._ending and look.status == "restarting"):
                await asyncio.to_thread(self._stop)
                self._news.set()
            return None
        if self._verdict is None and self._shot(look):
            self._earlier += look.restarts + 1
            await asyncio.to_thread(self._handle.start)
            return None
        return look.code if self._verdict is None else self._verdict

    def _shot(self, look: ContainerState) -> bool:
        """Whether somebody has killed it by `docker kill`, after which the engine leaves it where it lies."""
        if self._ending or look.code == 0 or look.code in ASKED or self._decided(look.code):
            return False
        return look.restarts < self._allowed

    def _decided(self, code: int) -> bool:
        """Whether the peer itself has said that it cannot go on; wrong input is a decision at the first start only."""
        if code == WRONG_INPUT and not self.restarts:
            return True
        return code != 0 and isinstance(last_event(self._out / EVENTS), Failed)

    def _look(self) -> ContainerState:
        docker = docker_sdk()
        try:
            self._handle.reload()
        except docker.errors.NotFound:
            raise FailedError(f"the container {self._handle.name} was removed; the same command resumes it") from None
        state = self._handle.attrs["State"]
        return ContainerState(state["Status"], state["ExitCode"], self._handle.attrs["RestartCount"])

    def _stop(self) -> None:
        """For good: the engine would start it again."""
        self._handle.update(restart_policy=restart_policy(0))
        self._handle.stop(timeout=1)

    def _send(self, number: int) -> None:
        docker = docker_sdk()
        with suppress(docker.errors.APIError):  # it has ended, or the engine tells so by and by
            self._handle.kill(signal=int(number))
