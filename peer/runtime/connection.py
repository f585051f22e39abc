"""From a protocol's declarations to the manifest that the wire enforces.

Every vector and record that may leave a peer is in it, with its size and its rounds, and what its data is like; where
a view takes members in, also what these are given: as it is, in the view's first round only
(`with_admission_vectors`).
"""

from dataclasses import replace

from peer.errors import InputError
from peer.learning.data.samples import Names
from peer.learning.model.model import Model
from peer.network.wire.frames import MAX_DOUBLES
from peer.network.wire.manifest import Manifest, PayloadSpec
from peer.protocols.base import Protocol
from peer.protocols.declarations import Declarations, Record, Share
from peer.views.view import View


def build_manifest(declared: Declarations, model: Model, rounds: int, peers: int, names: Names) -> Manifest:
    """Every vector and record that may leave a peer, with its size and its rounds; what its data is like."""
    shares = [_share_payload(share, model, rounds) for share in declared.shares]
    records = [_record_payload(record, model, rounds, peers) for record in declared.records]
    return Manifest((*shares, *records), _data_facts(model, names))


def with_admission_vectors(declared: Manifest, plain: Manifest, protocol: Protocol, view: View, peers: int) -> Manifest:
    """With what those are given who are taken in: it travels as it is, in the view's first round only.

    plain: what is declared, as it is before it is encoded; peers: members and all who are not.
    """
    if not view.entrants:
        return declared
    numbers = [PayloadSpec(name, size=0, doubles=peers, first_round=0, last_round=0) for name in protocol.by_peer]
    vectors = {payload.name: replace(payload, doubles=0) for payload in plain.payloads}
    known = vectors | {payload.name: payload for payload in numbers}
    entries = [
        replace(known[name], name=admission_name(name), first_round=view.first, last_round=view.first, every=1)
        for name in protocol.state_contract.handed_over
    ]
    return Manifest((*declared.payloads, *entries), declared.data)


def admission_name(name: str) -> str:
    """How such a vector is called on its way to somebody who is taken in."""
    return f"{name} on entry"


def _data_facts(model: Model, names: Names) -> tuple[str, ...]:
    """Inputs, targets and fixed weights in words, one fact each, as peers must have them alike.

    Columns in another order fit every model and are learnt wrongly; so are features of other frozen weights.
    """
    columns = [f"column {number} `{name}`" for number, name in enumerate(names.columns, 1)]
    classes = [f"class {number} `{name}`" for number, name in enumerate(names.classes)]
    inputs = f"{len(columns)} columns" if columns else f"inputs of shape {model.shape}"
    return (inputs, model.task.outputs_in_words(model.classes), *columns, *classes, *model.facts)


def _share_payload(share: Share, model: Model, rounds: int) -> PayloadSpec:
    part = None if share.bytes else share.part  # nobody can say where in bytes a tensor lies
    where = model.part(part or "model")
    size = share.size or where.stop - where.start
    at = range(rounds + 1) if share.rounds is None else share.rounds
    return PayloadSpec(
        name=share.vector,
        size=size,
        # The sum of the weights travels with a weighted mean, whether the protocol has numbers of its own or not.
        doubles=max(share.scalars, 1),
        first_round=at.start,
        last_round=at.stop - 1,
        every=at.step,
        kind="uint8" if share.bytes else "float32",
        tensors=tuple((e.name, e.shape, e.dtype) for e in model.layout if where.start <= e.offset < where.stop)
        if part
        else (),
        head=_head_place(share, model, where.start, size) if share.holds_head else (0, 0),
    )


def _head_place(share: Share, model: Model, begin: int, size: int) -> tuple[int, int]:
    """Where in a vector of `size` values that begins at `begin` of the model the head lies; all of it, in bytes."""
    if share.bytes:
        return 0, size
    head = model.part("head")
    return min(max(head.start - begin, 0), size), min(head.stop - begin, size)


def _record_payload(record: Record, model: Model, rounds: int, peers: int) -> PayloadSpec:
    size = record.length(model, peers)
    if size > MAX_DOUBLES:
        raise InputError(f"`{record.name}` has {size} numbers and a message holds {MAX_DOUBLES}; use another protocol")
    return PayloadSpec(name=record.name, size=0, doubles=size, first_round=0, last_round=rounds)
