"""Which keys settings know, and in which block, by their JSON schemas."""

from collections.abc import Mapping
from typing import Any

from peer.settings import Settings

Location = tuple[int | str, ...]
"""The steps to a value: keys, and places in lists."""
FEW = 3
"""A key that more blocks know says nothing of where it was meant to stand."""


def elsewhere(location: Location, kind: type[Settings], components: Mapping[Location, type[Settings]]) -> list[str]:
    """Where a key that does not belong at `location` would, in words.

    components: the class of each block whose class its `name` chooses, by its place.
    """
    *at, key = location
    if any(isinstance(step, int) for step in at):
        return []  # what one of several is like, another block does not tell
    blocks: dict[Location, type[Settings]] = {place: one for place, one in components.items() if len(place) == 1}
    known = [(*place, *below) for place, one in [*blocks.items(), ((), kind)] for below in _places(str(key), one)]
    # Not in the block itself, where another of its kinds knows the key.
    others = [place for place in dict.fromkeys(known) if not place or tuple(at[: len(place)]) != place]
    named = [f"`{'.'.join(map(str, place))}.{key}`" if place else f"`{key}` outside of all blocks" for place in others]
    return named if len(named) <= FEW else []


def _places(key: str, kind: type[Settings]) -> list[Location]:
    """The blocks of `kind` that know the key: itself, and those right below it."""
    blocks: list[Location] = [(), *((name,) for name in keys(kind, ()))]
    return [block for block in blocks if key in keys(kind, block)]


def keys(kind: type[Settings], location: Location) -> list[str]:
    """The keys known at `location` below `kind`, looked up in its JSON schema."""
    schema = kind.model_json_schema()
    definitions = schema.get("$defs", {})
    nodes = [schema]
    for step in location:
        below: list[Any] = []
        for node in nodes:
            below += _below(node, step, definitions)
        # A union's tag is no key: stay, but with the one it chooses.
        nodes = below or [node for node in nodes if _tag(node) == step] or nodes
    return sorted({key for node in nodes for key in node.get("properties", {})})


def _tag(node: dict[str, Any]) -> Any:
    return node.get("properties", {}).get("kind", {}).get("const")


def _below(node: dict[str, Any], step: int | str, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    any_key = next(iter(node.get("patternProperties", {}).values()), None)
    child = node.get("properties", {}).get(step) or (node.get("items") if isinstance(step, int) else any_key)
    if child is None:
        return []
    found, options = [], [child]
    for option in options:  # a union may hold another
        options += [*option.get("anyOf", []), *option.get("oneOf", [])]
        reference = option.get("$ref", "").removeprefix("#/$defs/")
        found.append(definitions.get(reference, option))
    return found
