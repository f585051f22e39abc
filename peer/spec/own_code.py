"""Which code of one's own a federation's spec names."""

from collections.abc import Iterator, Mapping
from typing import Any


def own_code(content: Mapping[str, Any]) -> list[str]:
    """Every `module:Name` in the plain content of a spec, or of a part of it, whether or not it is valid otherwise."""
    return [name for name in _names(content) if ":" in name]


def _names(content: Mapping[str, Any]) -> Iterator[str]:
    for key in ("protocol", "model", "task"):
        yield from _name(content.get(key))
    yield from _name(_block(content.get("protocol")).get("like"))
    yield from _name(_block(content.get("training")).get("step"))
    yield from _name(content.get("tracker"))
    yield from _of_source(content.get("data"))
    for member in _entries(content.get("ring")):
        yield from _of_source(_block(member).get("data"))


def _of_source(source: Any) -> Iterator[str]:
    yield from _name(source)
    block = _block(source)
    yield from _name(block.get("collate"))
    for key in ("transforms", "test_transforms"):
        for one in _entries(block.get(key)):
            yield from filter(_is_text, [one] if isinstance(one, str) else _block(one))


def _name(raw: Any) -> Iterator[str]:
    """`protocol: fibfl` and `protocol: {name: fibfl}` are the same."""
    yield from filter(_is_text, [_block(raw).get("name", raw)])


def _block(raw: Any) -> Mapping[str, Any]:
    return raw if isinstance(raw, Mapping) else {}


def _entries(raw: Any) -> list[Any]:
    return [*raw] if isinstance(raw, list | tuple) else []


def _is_text(raw: Any) -> bool:
    return isinstance(raw, str)
