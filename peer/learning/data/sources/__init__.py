"""Data sources by the names they have in a spec."""

from peer.learning.data.sources.base import Source
from peer.learning.data.sources.comma_separated import Csv
from peer.learning.data.sources.image_folder import ImageFolder
from peer.learning.data.sources.image_sets import Cifar10, Cifar100, Digits, Emnist, FashionMnist, Mnist
from peer.learning.data.sources.npz import Npz
from peer.learning.data.sources.tables import Parquet
from peer.learning.data.sources.user import UserSource
from peer.settings import by_word

SOURCES: dict[str, type[Source]] = by_word(
    "name", Digits, Mnist, FashionMnist, Emnist, Cifar10, Cifar100, Npz, Csv, Parquet, ImageFolder
)

__all__ = ["SOURCES", "Source", "UserSource", "source_type"]


def source_type(name: str) -> type[Source]:
    """The settings class of a data set's name, `module:function` included; KeyError for an unknown one."""
    return UserSource if ":" in name else SOURCES[name]
