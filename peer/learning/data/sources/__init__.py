"""Data sources by the names they have in a spec."""

from peer.errors import InputError, suggest
from peer.learning.data.sources.base import Source
from peer.learning.data.sources.comma_separated import Csv
from peer.learning.data.sources.image_folder import ImageFolder
from peer.learning.data.sources.image_sets import Cifar10, Cifar100, Digits, Emnist, FashionMnist, Mnist
from peer.learning.data.sources.npz import Npz
from peer.learning.data.sources.tables import Parquet
from peer.learning.data.sources.user import UserSource

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
        raise InputError(f"unknown data set `{name}`; {suggest(name, [*SOURCES, 'module:function'])}")
    return SOURCES[name]
