"""Which stream of a caller counts: a newer one takes the place of an older only once it has said something of use.

One that is opened and says nothing changes nothing, however often that is done; without certificates anybody can.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from peer.network.limits import Limits, Timeouts
from peer.network.pace import Pace
from peer.network.streams.traffic import Counted
from peer.network.transport import DisconnectedError


class Succession:
    """The streams of one kind that others have opened, by who they are."""

    def __init__(self, limits: Limits, timeouts: Timeouts) -> None:
        self._limits, self._timeouts = limits, timeouts
        self._present: dict[str, Counted] = {}
        self._candidates: dict[str, list[Counted]] = {}
        self._paces: dict[str, Pace] = {}
        self._changed = asyncio.Event()

    def present(self, caller: str) -> Counted | None:
        """The one that counts."""
        return self._present.get(caller)

    def enter(self, pipe: Counted) -> bool:
        """A welcomed stream, and whether it counts at once, as there is no other; else it is a candidate."""
        if pipe.peer not in self._present:
            self._put_in_use(pipe)
            return True
        candidates = self._candidates.setdefault(pipe.peer, [])
        candidates.append(pipe)
        if len(candidates) > self._limits.candidates:
            _one_too_many(candidates).abort()
        return False

    async def succeed(self, pipe: Counted) -> None:
        """It has said something of use: from now on it counts, and the older one is ended.

        A stream in use does not give way more than some times in a row; then this one waits, or until that one ends.
        """
        pace = self._paces.setdefault(pipe.peer, Pace(self._limits.successions, self._timeouts.succeed))
        while (older := self._present.get(pipe.peer)) and not pace.take():
            with suppress(TimeoutError):
                async with asyncio.timeout(pace.wait):
                    self._changed.clear()
                    await self._changed.wait()
        candidates = self._candidates.get(pipe.peer, [])
        if pipe not in candidates:
            raise DisconnectedError("another stream has taken its place")
        candidates.remove(pipe)
        self._put_in_use(pipe)
        if older:
            older.abort()

    def _put_in_use(self, pipe: Counted) -> None:
        self._present[pipe.peer] = pipe
        pipe.in_use()

    def end(self, caller: str) -> None:
        """It is no neighbour any more: all its streams are ended, and none of them comes to count."""
        present = self._present.get(caller)
        for pipe in (*([present] if present else []), *self._candidates.pop(caller, [])):
            pipe.abort()

    def leave(self, pipe: Counted) -> None:
        """It has ended."""
        if self._present.get(pipe.peer) is pipe:
            del self._present[pipe.peer]
            self._changed.set()
        elif pipe in self._candidates.get(pipe.peer, []):
            self._candidates[pipe.peer].remove(pipe)


def _one_too_many(candidates: list[Counted]) -> Counted:
    """The oldest of those from the machine that has opened most: nobody elsewhere can push out an honest one."""
    origins = Counter(_host(pipe) for pipe in candidates)
    most = max(origins.values())
    oldest = next(pipe for pipe in candidates if origins[_host(pipe)] == most)
    candidates.remove(oldest)
    return oldest


def _host(pipe: Counted) -> str:
    return pipe.origin.rpartition(":")[0]
