"""From a protocol's declarations to the manifest that the wire enforces."""

from peer.errors import InputError
from peer.learning.model.model import PARTS, Model, Part
from peer.network.wire.frames import MAX_DOUBLES
from peer.network.wire.manifest import Manifest, Payload
from peer.protocols.base import Protocol, Record, Share


def manifest(protocol: Protocol, model: Model, rounds: int) -> Manifest:
    """Every vector and record that may leave a peer in this run, with its size and its rounds."""
    shares = [_share(share, model, rounds) for share in protocol.shares(rounds)]
    records = [_record(record, model, rounds) for record in protocol.records]
    return Manifest((*shares, *records), model.shape, model.classes)


def _share(share: Share, model: Model, rounds: int) -> Payload:
    part: Part = share.vector if share.vector in PARTS else "model"
    where = model.part(part)
    head = model.part("head")
    at = range(rounds + 1) if share.rounds is None else share.rounds
    return Payload(
        name=share.vector,
        floats=where.stop - where.start,
        doubles=share.scalars,
        first_round=at.start,
        last_round=at.stop - 1,
        tensors=tuple((e.name, e.shape, e.dtype) for e in model.layout if where.start <= e.offset < where.stop),
        private=(max(head.start, where.start) - where.start, max(head.stop, where.start) - where.start)
        if head.start < where.stop
        else (0, 0),
    )


def _record(record: Record, model: Model, rounds: int) -> Payload:
    size = model.classes if record.size == "classes" else record.size
    if size > MAX_DOUBLES:
        raise InputError(f"`{record.name}` has {size} numbers and a message holds {MAX_DOUBLES}; use another protocol")
    return Payload(name=record.name, floats=0, doubles=size, first_round=0, last_round=rounds)
