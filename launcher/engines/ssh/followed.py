"""A peer on a host, as the launcher sees it: its files are followed into the run's directory here."""

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.engines.base import Process
from launcher.engines.ssh.hosts import Host
from peer.errors import FailedError
from peer.files import cannot_write

FOLLOWED = ("events.jsonl", "log.txt")


class RemotePeer(Process):
    """From a start to the end that follows it, however often the connection is lost meanwhile.

    out: the peer's directory here. poke: called when there is a signal to deliver.
    """

    def __init__(self, id: str, host: Host, out: Path, poke: Callable[[], None]) -> None:
        self.id, self._host, self._out, self._poke = id, host, out, poke
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._unwritable: asyncio.Future[FailedError] = asyncio.get_running_loop().create_future()
        self._told = False
        self.undelivered: int | None = None
        """A signal that the host has not been told of yet."""

    async def wait(self) -> int:
        """As every process; FailedError, once, when what it writes cannot be written here any more."""
        either = (self._ended,) if self._told else (self._ended, self._unwritable)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self.ended:
            self._told = True
            raise self._unwritable.result()
        return self._ended.result()

    def signal(self, number: int) -> None:
        if not self.ended:
            self.undelivered = number
            self._poke()

    @property
    def ended(self) -> bool:
        return self._ended.done()

    def delivered(self, number: int) -> None:
        if self.undelivered == number:
            self.undelivered = None

    def end(self, code: int) -> None:
        if not self.ended:
            self._ended.set_result(code)
        self.undelivered = None

    def offsets(self) -> dict[str, int]:
        """How many bytes of each file are here."""
        paths = {name: self._out / name for name in FOLLOWED}
        return {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}

    def hear(self, notice: dict[str, Any]) -> None:
        """What the host tells of the peer; what is not said as `remote/` says it is passed over."""
        match notice:
            case {"ended": int(code)}:
                self.end(code)
            case {"file": str(name), "at": int(at), "data": str(data)} if name in FOLLOWED:
                if not self._unwritable.done():
                    self._take(name, at, data)

    def _take(self, name: str, at: int, data: str) -> None:
        try:
            self._write(name, at, base64.b64decode(data, validate=True))
        except ValueError:
            return
        except OSError as error:
            self._unwritable.set_result(FailedError(cannot_write(self._out / name, error)))
        except FailedError as error:
            self._unwritable.set_result(error)

    def _write(self, name: str, at: int, data: bytes) -> None:
        """ValueError where something would be missing before it; FailedError where it would be too much."""
        descriptor = os.open(self._out / name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            if not 0 <= at <= (size := os.fstat(descriptor).st_size):
                raise ValueError
            if at + len(data) > self._host.bytes_of_a_peer:
                raise FailedError(self._host.too_much(f"{name} of {self.id}"))
            if at < size:  # the file there was begun anew
                file.truncate(at)
            file.seek(at)
            file.write(data)
