"""From a protocol's declarations to the manifest that the wire enforces.

It lists every vector and record that may leave a peer, with the size and rounds in which it travels, and describes the
peer's data. If a view admits members, it also lists what they are given: unencoded, in the view's first round only.
"""

from collections.abc import Sequence
from dataclasses import replace

from peer.errors import InputError
from peer.learning.data.samples import Names
from peer.learning.model.model import Model
from peer.network.wire.frames import MAX_DOUBLES
from peer.network.wire.manifest import Manifest, PayloadSpec
from peer.protocols.base import Protocol
from peer.protocols.declarations import Declarations, Record, Share
from peer.runtime.rounds.admission import ENTRY, admission_name
from peer.runtime.rounds.encodings import new_encoding
from peer.runtime.setup import Setup
from peer.spec.federation import IMPUTED
from peer.views.view import View


def build_manifest(declared: Declarations, model: Model, rounds: int, peers: int, names: Names) -> Manifest:
    """The manifest before encoding: every vector and record that may leave a peer, and what its data is like."""
    shares = [_share_payload(share, model, rounds) for share in declared.shares]
    records = [_record_payload(record, model, rounds, peers) for record in declared.records]
    return Manifest((*shares, *records), _data_facts(model, names))


def travelling_manifest(setup: Setup) -> Manifest:
    """The manifest of a peer in its view: all that may leave it, as encoded for the wire."""
    spec, view, declared = setup.spec, setup.view, setup.spec.declarations()
    plain = build_manifest(declared, setup.model, spec.rounds, len(view.members), setup.shard.names)
    encoding, shares = new_encoding(spec.wire, setup.model.sizes), len(declared.shares)
    payloads = [*map(encoding.payload, declared.shares, plain.payloads), *plain.payloads[shares:]]
    payloads += _admission_payloads(plain, spec.protocol, view, len(spec.ids))
    if spec.found_together:
        payloads += _column_payloads(spec.found_together, setup.shard.names, setup.shard.train.shape[0], view)
    return Manifest((*payloads,), plain.data)


def _admission_payloads(plain: Manifest, protocol: Protocol, view: View, ids: int) -> list[PayloadSpec]:
    """What admitted peers are given. plain: the manifest before encoding; ids: the number of all peers, also absent."""
    if not view.entrants:
        return []
    numbers = [PayloadSpec(name, size=0, doubles=ids, first_round=0, last_round=0) for name in protocol.by_peer]
    vectors = {payload.name: replace(payload, doubles=0) for payload in plain.payloads}
    known = vectors | {payload.name: payload for payload in numbers}
    return [
        replace(known[name], name=admission_name(name), first_round=view.first, last_round=view.first, every=1)
        for name in protocol.state_contract.handed_over
    ]


def _column_payloads(vectors: Sequence[str], names: Names, columns: int, view: View) -> list[PayloadSpec]:
    """The vectors of what all peers find of columns together, and of the result, which admitted peers are given."""
    imputed = len(names.rules)
    payloads = [
        PayloadSpec(
            name=name, size=2 * (imputed if name == IMPUTED else columns), doubles=1, first_round=0, last_round=0
        )
        for name in vectors
    ]
    if view.entrants:
        size = 2 * columns + imputed
        payloads.append(PayloadSpec(name=ENTRY, size=size, doubles=0, first_round=view.first, last_round=view.first))
    return payloads


def _data_facts(model: Model, names: Names) -> tuple[str, ...]:
    """Inputs, targets and fixed weights in words, one fact each: all that must be the same at every peer.

    Columns in another order fit every model, but it learns nonsense; so do features of other frozen weights.
    """
    columns = [f"column {number} `{name}`" for number, name in enumerate(names.columns, 1)]
    classes = [f"class {number} `{name}`" for number, name in enumerate(names.classes)]
    inputs = f"{len(columns)} columns" if columns else f"inputs of shape {model.shape}"
    return (inputs, model.task.outputs_in_words(model.classes), *columns, *classes, *model.facts)


def _share_payload(share: Share, model: Model, rounds: int) -> PayloadSpec:
    part = None if share.bytes else share.part  # where a tensor lies within bytes is not known
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
    """The head's range [start, stop) in a vector of `size` values from `begin` of the model; all of it, for bytes."""
    if share.bytes:
        return 0, size
    head = model.part("head")
    return min(max(head.start - begin, 0), size), min(head.stop - begin, size)


def _record_payload(record: Record, model: Model, rounds: int, peers: int) -> PayloadSpec:
    size = record.length(model, peers)
    if size > MAX_DOUBLES:
        raise InputError(f"`{record.name}` has {size} numbers and a message holds {MAX_DOUBLES}; use another protocol")
    return PayloadSpec(name=record.name, size=0, doubles=size, first_round=0, last_round=rounds)
