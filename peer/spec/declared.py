"""What a protocol declares, which may be the user's own: asked for once, before anything is created."""

from typing import Any, get_args

from peer.learning.training.phase import Phase
from peer.plugins import in_words
from peer.protocols.base import Protocol, Record, ResourceSource, Share
from peer.topology.graphs import Graph


def check_declared(protocol: Protocol, rounds: int) -> None:
    """ValueError, with the way out, for what is not as a protocol has to say it."""
    try:
        declared = (protocol.shares(rounds), protocol.local())
    except Exception as error:
        raise ValueError(f"`{protocol.name}` cannot say what it does: {in_words(error)}") from error
    _check_kinds(f"`shares` of `{protocol.name}` returned", declared[0], Share)
    _check_kinds(f"`local` of `{protocol.name}` returned", declared[1], Phase)
    if callable(protocol.records):
        raise ValueError(
            f"`records` of `{protocol.name}` is a method; write it as a value of the class: "
            'records = (Record("name", 3),)'
        )
    _check_kinds(f"`records` of `{protocol.name}` is", protocol.records, Record)
    for names in ("replicated", "by_peer", "unchanging"):
        _check_names(f"`{names}` of `{protocol.name}` is", getattr(protocol, names))
    for field in type(protocol).model_fields:
        if isinstance(getattr(Protocol, field, None), property):
            raise ValueError(
                f"`{field}` of `{protocol.name}` is a hyperparameter, which nothing reads; write "
                f"`{field}: ClassVar[str] = ...`, or a property"
            )
    graph, known = protocol.graph, get_args(Graph)
    if graph not in known:
        raise ValueError(f"`graph` of `{protocol.name}` is {graph!r}; it is one of {', '.join(known)}")
    source, sources = protocol.resources_from, get_args(ResourceSource)
    if source not in sources:
        raise ValueError(f"`resources_from` of `{protocol.name}` is {source!r}; it is one of {', '.join(sources)}")


def _check_kinds(told: str, declared: Any, kind: type) -> None:
    """ValueError unless what a protocol declares is a tuple of these; `told` names it."""
    if isinstance(declared, kind):
        raise ValueError(f"{told} one {kind.__name__} and no tuple; write a comma behind it: `({kind.__name__}(...),)`")
    if not isinstance(declared, tuple) or not all(isinstance(one, kind) for one in declared):
        raise ValueError(f"{told} {declared!r}, and must be a tuple of {kind.__name__}, such as `()`")


def _check_names(told: str, names: Any) -> None:
    """ValueError unless these are names in `peer.state`, as a tuple."""
    if isinstance(names, str):
        raise ValueError(f"{told} the text {names!r} and no tuple; write a comma behind it: `({names!r},)`")
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{told} {names!r}, and must be a tuple of names in `peer.state`, such as `('weights',)`")
