"""A folder of image files, one subfolder a class; an image is decoded when a peer takes it."""

import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from peer.errors import InputError, optional
from peer.files import open_plain
from peer.learning.data.dataset import Dataset, Labelled, hold_out, join_parts
from peer.learning.data.samples import Array, Indices, Names
from peer.learning.data.sources.base import OnDisk
from peer.learning.tasks import Task

# With all of its formats Pillow would start other programs for some, whatever the suffix says.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
PILLOW_ERRORS = (OSError, SyntaxError, ValueError, LookupError, TypeError, EOFError, struct.error)
"""Pillow's ways of telling of a damaged file, depending on the format and on how far it came."""


class ImageFolder(OnDisk):
    """Files root/train/CLASS/* and root/test/CLASS/*; without root/test, or as root/CLASS/*, with a holdout.

    Classes are numbered by sorted folder name; images are scaled to size × size, pixels to [0, 1].
    """

    name: Literal["image-folder"]
    """Image files of your own."""
    root: Path
    """The folder of train and test, or of the classes."""
    size: int = Field(default=32, ge=1, le=4096)
    """Height and width."""
    channels: Literal[1, 3] = 3
    """3 for colour, 1 for grey."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """Share held out for testing where there is no test set."""
    class_names: tuple[str, ...] | None = Field(default=None, min_length=1)

    def _read(self, task: Task) -> Dataset:
        where = str(self.root)
        split = (self.root / "train").is_dir()
        top = self.root / "train" if split else self.root
        names = self.class_names or _subfolders(top)
        train = self._list(top, names, task)
        if split and (self.root / "test").is_dir():
            test = self._list(self.root / "test", names, task)
        else:
            train, test = hold_out(train, self.holdout, self.seed, where)
        return replace(join_parts(train, test, where, len(names)), names=Names(classes=names))

    def _list(self, top: Path, names: tuple[str, ...], task: Task) -> Labelled:
        unknown = sorted(set(_subfolders(top)) - set(names))
        if unknown:
            raise InputError(f"{top}: the folder {unknown[0]!r} is none of the classes {', '.join(names)}")
        files = [_images(top / name) for name in names]
        paths = tuple(path for group in files for path in group)
        if not paths:
            raise InputError(f"there are no images in the class folders of {top}")
        labels = np.repeat(np.arange(len(names)), [len(group) for group in files])
        targets = task.read_targets(labels, str(top), "its folders")
        return Labelled(ImageFiles(paths, self.size, self.channels), targets, task, 255.0)


@dataclass(frozen=True)
class ImageFiles:
    """Image files as inputs: uint8 (n, channels, size, size), decoded at each access."""

    paths: tuple[Path, ...]
    size: int
    channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), self.channels, self.size, self.size)

    def __getitem__(self, indices: Indices, /) -> Array:
        pixels = np.empty((len(indices), *self.shape[1:]), np.uint8)
        pillow = optional("PIL.Image", "reading image files", "Pillow", "vision")
        for row, index in enumerate(indices):
            pixels[row] = self._decode(pillow, self.paths[index])
        return pixels

    def _decode(self, pillow: Any, path: Path) -> Array:
        try:
            with open_plain(path) as file, pillow.open(file, formats=_FORMATS) as image:
                if image.width * image.height > pillow.MAX_IMAGE_PIXELS:
                    raise ValueError(f"its {image.width} x {image.height} pixels are too many; scale it down")
                if image.mode.startswith(("I", "F")):  # Pillow would cut them off at 255
                    raise ValueError("it has more than 8 bits a pixel; save it with 8 bits, or give arrays")
                image = image.convert("RGB" if self.channels == 3 else "L")
                image = image.resize((self.size, self.size), pillow.Resampling.BILINEAR)
        except (*PILLOW_ERRORS, pillow.DecompressionBombError) as error:
            raise InputError(f"cannot read the image {path}: {error}") from error
        return np.asarray(image).reshape(self.size, self.size, self.channels).transpose(2, 0, 1)


def _subfolders(top: Path) -> tuple[str, ...]:
    if not top.is_dir():
        raise InputError(f"there is no folder {top}")
    names = sorted(path.name for path in top.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise InputError(f"{top} has no folders, and needs one for each class")
    return tuple(names)


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
