"""A disk on which a process can die at every step of a checkpoint, and from which a power cut takes renames."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import BinaryIO
from unittest.mock import patch

from faults.clock import here
from peer import files
from peer.files import Buffer
from peer.runtime.checkpoints import Checkpoints, Journal
from peer.spec.recordings import VIEWS


class Disk:
    """What has been renamed but not yet fsynced, by directory: a name, and the file that had it before."""

    def __init__(self) -> None:
        self.loose: dict[Path, list[tuple[Path, BinaryIO | None]]] = {}

    @contextmanager
    def under(self) -> Iterator[None]:
        """Checkpoints, journals and registers go through this disk."""
        set_aside, drop, forget = Checkpoints._set_aside, Checkpoints.drop_after, Journal.drop_after

        def loosely(store: Checkpoints, kind: str, round: int, suffix: str) -> None:
            here("disk")
            self._renaming(store._path(kind, round, suffix))
            set_aside(store, kind, round, suffix)
            here("disk")

        def drop_after(store: Checkpoints, round: int) -> None:
            here("views")
            drop(store, round)
            here("views")

        def forget_after(journal: Journal, round: int) -> None:
            forget(journal, round)
            here("views")

        with (
            patch("peer.runtime.checkpoints.write_atomically", self.write),
            patch("peer.runtime.checkpoints.sync", self.sync),
            patch("peer.runtime.membership.view_store.write_atomically", self.write),
            patch("peer.runtime.membership.view_store.sync", self.sync),
            patch.object(Checkpoints, "_set_aside", loosely),
            patch.object(Checkpoints, "drop_after", drop_after),
            patch.object(Journal, "drop_after", forget_after),
        ):
            yield
        for directory in [*self.loose]:
            self._settle(directory)

    def write(self, path: Path, content: Buffer | Sequence[Buffer], over: Path | None = None) -> None:
        kinds = ("disk", "views") if path.name == VIEWS else ("disk",)
        each(kinds)
        half_written(path, content, over)
        each(kinds)
        self._renaming(path)
        files.write_atomically(path, content)
        each(kinds)

    def sync(self, path: Path) -> None:
        here("disk")
        self._settle(path)
        here("disk")

    def power_cut(self, directory: Path, random: Random) -> None:
        """Any of the renames since the last fsync of the directory may be lost: the old file is back, as it is now."""
        for path, before in reversed(self.loose.get(directory, [])):
            if random.random() < 0.5:
                path.unlink(missing_ok=True)
                if before:
                    before.seek(0)
                    path.write_bytes(before.read())
        self._settle(directory)

    def _renaming(self, path: Path) -> None:
        self.loose.setdefault(path.parent, []).append((path, path.open("rb") if path.exists() else None))

    def _settle(self, directory: Path) -> None:
        for _, before in self.loose.pop(directory, []):
            if before:
                before.close()


def each(kinds: Iterable[str]) -> None:
    """A step of all these kinds."""
    for kind in kinds:
        here(kind)


def half_written(path: Path, content: Buffer | Sequence[Buffer], over: Path | None) -> None:
    """What a process leaves that dies in the middle of `write_atomically`."""
    beside = path.with_name(f".{path.name}.part")
    if over and over.exists():
        over.replace(beside)
    with beside.open("r+b" if beside.exists() else "wb") as file:
        whole = b"".join([content] if isinstance(content, Buffer) else content)
        file.write(whole[: len(whole) // 2])


def kept_by_the_newest_alone(directory: Path, seals: list[Path]) -> list[Path]:
    """Files of tensors that never change and that stand in the last of these seals only."""
    *older, newest = map(names_of_kept, seals)
    return [directory / f"kept-{digest}.safetensors" for digest in sorted(newest.difference(*older))]


def names_of_kept(seal: Path) -> set[str]:
    """None where an earlier death has damaged the seal."""
    try:
        return {*json.loads(seal.read_bytes())["content"].get("unchanging", {}).values()}
    except (ValueError, KeyError):
        return set()


def delete_a_byte(directory: Path, random: Random) -> int | None:
    """Damage one file of the newest sealed checkpoint; its round."""
    seals = sorted(directory.glob("round-*.json"))
    if not seals:
        return None
    number = seals[-1].stem.split("-")[1]
    victim = random.choice([*sorted(directory.glob(f"*-{number}.*")), *kept_by_the_newest_alone(directory, seals)])
    content = victim.read_bytes()
    at = random.randrange(len(content))
    victim.write_bytes(content[:at] + content[at + 1 :])
    return int(number)
