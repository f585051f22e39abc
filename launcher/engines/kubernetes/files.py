"""The peers' files on the volume of a run, brought into the run's directory here."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.engines.kubernetes.kubectl import CutError, Kubectl, refusal
from launcher.engines.kubernetes.place import RUNS
from launcher.run_files import RunFiles
from peer.errors import FailedError
from peer.telemetry.results import EVENTS, WANTED
from peer.text import one_line

INSIDE = Path(__file__).with_name("inside.py")
TRACE = "trace"
SILENCE = 30.0
"""Seconds after which a connection that says nothing counts as cut."""
PASSES = 2
"""So many looks at all files, and one of them began after now."""


class Files:
    """places: where each peer's directory is on the volume, by id. pod: the one through which it is read."""

    def __init__(self, kubectl: Kubectl, pod: str, files: RunFiles, places: Mapping[str, str]) -> None:
        self._kubectl, self._pod, self._files = kubectl, pod, files
        self._here = {f"{place}/{EVENTS}": files.out(id) / EVENTS for id, place in places.items()}
        self._places = places
        self._passes = 0
        self._passed = asyncio.Condition()

    async def follow(self) -> None:
        """Brings what the peers' events are, until the connection is cut. CutError says why it was."""
        offsets = {there: here.stat().st_size if here.exists() else 0 for there, here in self._here.items()}
        async for notice in self._notices(f"follow({offsets!r})"):
            if "data" in notice and notice["file"] in self._here:
                write(self._here[notice["file"]], notice["at"], base64.b64decode(notice["data"]))
            elif not notice:
                async with self._passed:
                    self._passes += 1
                    self._passed.notify_all()

    async def caught_up(self) -> None:
        """Until all that the peers have told by now is here; not for ever, where the connection is cut."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENCE), self._passed:
                enough = self._passes + PASSES
                await self._passed.wait_for(lambda: self._passes >= enough)

    async def bring(self) -> None:
        """What the summary needs of every peer, each file whole or not at all. CutError when that cannot be."""
        here = {f"{place}/{name}": (id, name) for id, place in self._places.items() for name in (*WANTED, TRACE)}
        over = False
        async for notice in self._notices(f"bring({[*here]!r})"):
            over = over or "over" in notice
            if path := self._wanted(here, str(notice.get("file", ""))):
                part = path.with_name(f".{path.name}.part")
                if "data" in notice:
                    write(part, notice["at"], base64.b64decode(notice["data"]))
                elif notice["size"] == 0:
                    write(path, 0, b"")
                elif not part.exists():
                    raise CutError(f"the cluster told of {path.name} and did not send it; run the command again")
                elif part.stat().st_size == notice["size"]:
                    part.replace(path)
        if not over:
            raise CutError("the connection to the cluster was cut while results were brought; run the command again")

    def _wanted(self, here: Mapping[str, tuple[str, str]], there: str) -> Path | None:
        """Where a file that was asked for comes to lie; None for any other."""
        directory, _, name = there.rpartition("/")
        id, place = here.get(there) or here.get(directory) or ("", "")
        if not id or name in ("", ".", "..") or (there not in here and place != TRACE):
            return None
        if there in here:
            return self._files.out(id) / name
        (self._files.out(id) / TRACE).mkdir(exist_ok=True)
        return self._files.out(id) / TRACE / name

    async def _notices(self, call: str) -> AsyncIterator[dict[str, Any]]:
        program = f"{INSIDE.read_text()}\n{call}\n"
        # Its length, as not every way into a pod can tell of the end of an input.
        begin = f"import sys; exec(sys.stdin.read({len(program)}))"
        command = ("exec", "--stdin", "--container=peer", self._pod, "--", "python", "-P", "-c", begin)
        last = ""
        async with self._kubectl.listen(*command, given=program) as lines:
            while True:
                try:
                    line = await asyncio.wait_for(lines.readline(), SILENCE)
                except TimeoutError:
                    raise CutError(f"the cluster has said nothing for {SILENCE:g} s") from None
                if not line:
                    break
                try:
                    yield json.loads(line)
                except ValueError:
                    if not line.startswith(b"command terminated"):
                        last = one_line(line.decode(errors="replace").strip()) or last
        if last:
            refused = refusal("exec", last)
            raise refused if "(Forbidden)" in last else CutError(str(refused))


def write(path: Path, at: int, data: bytes) -> None:
    """FailedError when it cannot be written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            if at < os.fstat(descriptor).st_size:  # the file there was begun anew
                file.truncate(at)
            file.seek(at)
            file.write(data)
    except OSError as error:
        raise FailedError(f"{path} cannot be written: {error.strerror or error}") from None


def volume_place(index: int, id: str) -> str:
    """A peer's directory as the pod sees it that sees all of them."""
    return str(RUNS / str(index) / id)
