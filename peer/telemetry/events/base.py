"""What every event has, and what fields may hold."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, TypeAdapter

SCHEMA = 1
"""Which version of these events a peer writes; the event `started` has it. It grows when an event or a field goes, or
means something else, and not when one is added: a reader passes over names that it does not know."""
Note = float | list[float | None] | None
"""What a protocol notes of a round; what is not finite is None."""
Share = Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]
"""An accuracy; a weighted mean may come to a little more than 1."""
LARGEST_FIGURE = 1e100
"""So many of them may be added up and squared."""
FigureValue = Annotated[float, Field(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)] | None
"""One of a task's figures; None where it is not finite."""


def bounded(value: float | None) -> float | None:
    """None in place of what is no finite number, or is larger than any figure."""
    return value if value is not None and abs(value) <= LARGEST_FIGURE else None


Loss = Annotated[float | None, AfterValidator(bounded)]
"""A model may diverge and its round counts all the same, whoever reads of it: then its loss is None."""
Number = Annotated[int, Field(ge=-1, le=10_000_000)]
"""Of a round or of a view: readers count up to it, whoever has written it."""
Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, kw_only=True)
class Event:
    """`str(event)` is its sentence."""

    name: ClassVar[str]
    level: ClassVar[int] = logging.INFO
    time: float = 0.0
    """When it happened, in unix seconds; 0 before it is told."""

    def as_json(self) -> dict[str, Any]:
        """Name and fields as they stand in events.jsonl, without the time."""
        fields = adapter(type(self)).dump_python(self, by_alias=True, exclude={"time"}, warnings=False)
        return {"event": self.name, **fields}


@dataclass(frozen=True, kw_only=True)
class Worded(Event):
    """One whose sentence is made where it happens."""

    sentence: str
    """In the log's words."""

    def __str__(self) -> str:
        return self.sentence


Report = Callable[[Event], None]


_ADAPTERS: dict[str, TypeAdapter[Any]] = {}
"""By an event's name."""


def adapter(kind: type[Event]) -> TypeAdapter[Any]:
    """Made when the first such event is told or read: to make all of them at every start takes a tenth of a second."""
    if kind.name not in _ADAPTERS:
        _ADAPTERS[kind.name] = TypeAdapter(kind)
    return _ADAPTERS[kind.name]
