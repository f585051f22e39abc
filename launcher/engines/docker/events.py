"""What the engine tells of a run's containers, from a thread of its own."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from launcher.engines.docker.errors import docker_sdk
from launcher.engines.docker.orders import PEER
from peer.errors import FailedError

PATIENCE, PAUSE = 60.0, 0.5
"""Seconds for which an engine that does not answer is asked again, and between two attempts."""


@dataclass(frozen=True)
class News:
    """What happened to a peer's container; the exit code where it died. Without a peer: something may have, to any."""

    peer: str
    what: str
    code: int = 0


class Events:
    """An engine that is started anew is heard again; what happened meanwhile nobody tells."""

    def __init__(self, client: Any, label: dict[str, str]) -> None:
        self._client, self._filters = client, {"type": "container", **label}
        self._since = int(time.time())
        self._stream: Any = None
        self._over = False

    async def heard(self) -> AsyncIterator[News]:
        """Without end; FailedError when the engine does not answer any more."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[News | None]()

        def put(news: News | None) -> None:
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
                put(News("", "reconnect"))
                for event in self._stream:
                    put(_news(event))
                    self._since = event.get("time", self._since)
            time.sleep(PAUSE)  # nothing tells when an engine is there again
        put(None)

    def _close(self) -> None:
        self._over = True
        if self._stream is not None:
            with suppress(OSError, AttributeError, ValueError):
                self._stream.close()


def _news(event: dict[str, Any]) -> News:
    attributes = event.get("Actor", {}).get("Attributes", {})
    return News(attributes.get(PEER, ""), event.get("Action", ""), int(attributes.get("exitCode", 0)))
