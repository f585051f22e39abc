"""A peer in a container, as the supervisor sees it."""

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.engines.base import Process
from launcher.engines.docker.errors import docker_sdk, refusals
from launcher.engines.docker.events import News
from launcher.engines.docker.log import Log
from launcher.engines.docker.orders import restart_policy
from launcher.engines.last_event import last_event
from peer.errors import FailedError
from peer.telemetry.events import Failed
from peer.telemetry.results import EVENTS

WRONG_INPUT = 2
OUT_OF_MEMORY = "the container had no memory left; give its peer more with --option memory=4g"
ASKED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of a peer that was told to stop."""


@dataclass(frozen=True)
class Look:
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
        self._log = Log(handle, out / "log.txt", self._look_again)
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

    def heard(self, news: News) -> None:
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

    def _shot(self, look: Look) -> bool:
        """Whether somebody has killed it by `docker kill`, after which the engine leaves it where it lies."""
        if self._ending or look.code == 0 or look.code in ASKED or self._decided(look.code):
            return False
        return look.restarts < self._allowed

    def _decided(self, code: int) -> bool:
        """Whether the peer itself has said that it cannot go on; wrong input is a decision at the first start only."""
        if code == WRONG_INPUT and not self.restarts:
            return True
        return code != 0 and isinstance(last_event(self._out / EVENTS), Failed)

    def _look(self) -> Look:
        docker = docker_sdk()
        try:
            self._handle.reload()
        except docker.errors.NotFound:
            raise FailedError(f"the container {self._handle.name} was removed; the same command resumes it") from None
        state = self._handle.attrs["State"]
        return Look(state["Status"], state["ExitCode"], self._handle.attrs["RestartCount"])

    def _stop(self) -> None:
        """For good: the engine would start it again."""
        self._handle.update(restart_policy=restart_policy(0))
        self._handle.stop(timeout=1)

    def _send(self, number: int) -> None:
        docker = docker_sdk()
        with suppress(docker.errors.APIError):  # it has ended, or the engine tells so by and by
            self._handle.kill(signal=int(number))
