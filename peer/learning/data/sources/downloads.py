"""Image sets in torchvision's layout under one root, fetched by torchvision when that is allowed."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peer.errors import InputError
from peer.files import lock
from peer.learning import vision
from peer.learning.data.sources.base import Source


class MissingError(InputError):
    """The set is not there; it could be fetched."""


class Downloadable(Source):
    """An image set that torchvision can download."""

    root: Path = Path("data")
    """Folder in which torchvision's data sets lie."""
    download: bool = False
    """Fetch the set into `root` when it is not there."""

    def _missing(self, file: Path) -> MissingError:
        return MissingError(
            f"no {self.name} in {self.root} (looked for {file}); "
            "set the data's root to the folder that has it, or download: true"
        )

    def _torchvision_set(self, kind: str, **options: Any) -> Any:
        """torchvision's data set of that class name; InputError when it cannot be fetched or is damaged."""
        datasets = vision.torchvision().datasets
        try:
            return getattr(datasets, kind)(self.root, **options)
        except (RuntimeError, OSError, EOFError) as error:
            attempt = "download" if self.download else "read"
            reason = " ".join(str(error).split())
            raise InputError(f"cannot {attempt} {self.name} in {self.root}: {reason}") from error


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let one process of this machine at a time download into `root`; the others then find the files."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot use the data folder {root}: {error.strerror}") from error
    try:
        lock(folder, patience=math.inf)
        yield
    finally:
        os.close(folder)
