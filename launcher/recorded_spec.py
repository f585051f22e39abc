"""A run's federation.yaml as it was written, as plain keys. The file may come from elsewhere, so nothing that it names
is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from peer.errors import InputError
from peer.files import MAX_SETTINGS_BYTES, read_plain
from peer.spec.agreement import Agreement
from peer.spec.blocks import Id
from peer.spec.document import Document
from peer.spec.federation import Spec


class Named(BaseModel, extra="allow"):
    """A block of which only the name is read."""

    name: str


class Listed(BaseModel, extra="allow"):
    """An entry of the ring, of which only the id is read."""

    id: Id


class Keys(BaseModel, extra="allow"):
    """The keys that are read individually; all others are only compared."""

    rounds: int = 10
    test: str | None = None
    run: str | None = None
    rewinds: list[Any] | None = None
    protocol: Named
    model: Named
    task: Named = Named(name="classification")
    data: Named
    ring: tuple[Listed, ...]


@dataclass(frozen=True)
class RecordedSpec:
    """A recorded spec: the content that all peers agreed on, and the keys that are read."""

    content: Mapping[str, Any]
    keys: Keys

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; InputError if it is not a spec that a launcher has written."""
        try:
            return cls._from_document(Document.parse(read_plain(path, MAX_SETTINGS_BYTES).decode(), path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{path}: is not a text file in UTF-8") from None
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise InputError(f"{path}: `{where}` is not as dfl-launch writes it") from None

    @classmethod
    def from_spec(cls, spec: Spec, path: Path) -> Self:
        """The recorded spec as it would be read from `path`."""
        return cls._from_document(Document.parse(spec.dump(), path))

    @classmethod
    def _from_document(cls, document: Document) -> Self:
        keys = Keys.model_validate(document.content)
        return cls(Agreement.from_plain(document.content).content, keys)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(member.id for member in self.keys.ring)

    def differing(self, other: Self) -> list[str]:
        """The keys in which two runs differ."""
        names = sorted(self.content.keys() | other.content.keys())
        return [name for name in names if self.content.get(name) != other.content.get(name)]
