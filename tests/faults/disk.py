"""A disk on which a process can die at every step of a checkpoint, and from which a power cut takes renames."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

from faults.clock import here
from peer import files


class Disk:
    """What has been renamed but not yet fsynced, by directory."""

    def __init__(self) -> None:
        self.loose: dict[Path, list[tuple[Path, bytes | None]]] = {}

    @contextmanager
    def under(self) -> Iterator[None]:
        """Checkpoints go through this disk."""
        with (
            patch("peer.checkpoint.write_atomically", self.write),
            patch("peer.checkpoint.sync", self.sync),
        ):
            yield

    def write(self, path: Path, content: bytes | memoryview) -> None:
        here("disk")
        path.with_name(f".{path.name}.part").write_bytes(bytes(content)[: len(content) // 2])
        here("disk")
        before = path.read_bytes() if path.exists() else None
        files.write_atomically(path, content)
        self.loose.setdefault(path.parent, []).append((path, before))
        here("disk")

    def sync(self, path: Path) -> None:
        here("disk")
        self.loose.pop(path, None)
        here("disk")

    def power_cut(self, directory: Path, random: Random) -> None:
        """Any of the renames since the last fsync of the directory may be lost."""
        for path, before in reversed(self.loose.pop(directory, [])):
            if random.random() < 0.5:
                if before is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(before)


def delete_a_byte(directory: Path, random: Random) -> int | None:
    """Damage one file of the newest sealed checkpoint; its round."""
    seals = sorted(directory.glob("round-*.json"))
    if not seals:
        return None
    number = seals[-1].stem.split("-")[1]
    victim = random.choice(sorted(directory.glob(f"*-{number}.*")))
    content = victim.read_bytes()
    at = random.randrange(len(content))
    victim.write_bytes(content[:at] + content[at + 1 :])
    return int(number)
