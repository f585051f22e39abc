"""Data sources by the names they have in a spec."""

import difflib

from peer.errors import InputError
from peer.learning.sources.base import Source
from peer.learning.sources.cifar import Cifar10, Cifar100
from peer.learning.sources.digits import Digits
from peer.learning.sources.folder import ImageFolder
from peer.learning.sources.idx import Emnist, FashionMnist, Mnist
from peer.learning.sources.npz import Npz
from peer.learning.sources.tables import Csv, Parquet
from peer.learning.sources.user import UserSource

SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "emnist": Emnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "npz": Npz,
    "csv": Csv,
    "parquet": Parquet,
    "image-folder": ImageFolder,
}

__all__ = ["SOURCES", "Source", "UserSource", "source_type"]


def source_type(name: str) -> type[Source]:
    """The settings class of a data set's name, `module:function` included; InputError for an unknown one."""
    if ":" in name:
        return UserSource
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SOURCES)} and module:function"
        raise InputError(f"unknown data set {name!r}; {hint}")
    return SOURCES[name]
