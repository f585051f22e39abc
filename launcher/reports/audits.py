"""The audits that the peers of a run have left, read again."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt, ValidationError

from peer.reading import lines, open_plain
from peer.telemetry.results import AUDIT, objects

Count = Annotated[StrictInt, Field(ge=0, lt=2**63)]


class Entry(BaseModel):
    """Bytes of one vector or record along one edge."""

    vector: str
    bytes: Count
    head_bytes: Count = 0
    scalar_bytes: Count = 0


class SentEntry(Entry):
    to: str
    order: Count = 0
    """How many orders of the ring had been announced in the round."""


class ReceivedEntry(Entry):
    sender: str = Field(alias="from")


class AuditedRound(BaseModel):
    """One round of one peer, in one view."""

    round: Count
    view: Count = 0
    interrupted: bool = False
    edges: dict[str, list[str]]
    sent: list[SentEntry]
    received: list[ReceivedEntry]
    orders: list[list[str]] = []
    told: dict[str, Count] = {}
    noted: dict[str, Count] = {}
    own_code: list[str] = []


def audits(places: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Every peer's audit from its directory, by id: {"rounds": [...]}, each round of a view once, as last written.

    A line that is spoilt is left out; the round that it told of is then missing.
    """
    found = {}
    for id, place in places.items():
        with suppress(OSError), open_plain(place / AUDIT) as file:
            records = {
                (one.get("view", 0), one["round"]): one
                for line in lines(file)
                for one in objects([line])
                if _is_whole(one)
            }
            found[id] = {"rounds": list(records.values())}
    return found


def _is_whole(record: dict[str, Any]) -> bool:
    try:
        AuditedRound.model_validate(record)
    except ValidationError:
        return False
    return True
