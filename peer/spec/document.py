"""Reading a settings file: YAML 1.2 (so `1e-3` is a number) or JSON, with a line number for every key.

A `Document` is read, changed by the command line (`put`), and validated (`validate`). Every error names file, line and
the nearest known key; which keys are known, and in which block, is looked up in the settings' JSON schemas.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from peer.errors import InputError, suggest
from peer.files import MAX_SETTINGS_BYTES, read_up_to
from peer.settings import Settings, Wanted

Location = tuple[int | str, ...]
"""The steps to a value: keys, and places in lists."""
S = TypeVar("S", bound=Settings)
MAX_VALUES = 1_000_000
"""Aliases of aliases can stand for billions."""
MAX_DEPTH = 100
"""Brackets in one another: the parser's time grows with the square of their number."""


@dataclass(frozen=True)
class Document:
    """The plain content of a settings file with what the command line puts into it, and where each key stands."""

    path: Path
    content: dict[str, Any]
    tree: Any
    """The parser's own containers, which know their lines."""
    options: dict[Location, str] = field(default_factory=dict, kw_only=True)
    """What else gave a value, by its keys: an option of the command line, or a line with a short form; of several for
    one key the last counts."""
    line: int | None = field(default=None, kw_only=True)
    """Where it begins, of a part of a file."""

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Raise InputError when the file is missing, is no YAML, or is not a mapping."""
        try:
            with path.open("rb") as file:
                text = read_up_to(file, MAX_SETTINGS_BYTES).decode("utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from None
        except UnicodeDecodeError:
            raise InputError(f"{path}: is not a text file in UTF-8; give the path of a YAML file") from None
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> "Document":
        tree = _tree(text, path)
        return cls(path, plain(tree), tree)

    def where(self, location: Location) -> str:
        """The option that gave what stands at `location`, or chose what has to stand there, or `file:line` of its
        deepest part in the file, with the options that gave parts of it."""
        keys = self._keys(location)
        chosen = {(*keys, "name"), (*keys, "kind")}
        given = (said for at, said in reversed(self.options.items()) if keys[: len(at)] == at or at in chosen)
        if option := next(given, None):
            return option
        node: Any = self.tree
        line = self.line
        for step in location:
            try:
                position = node.lc.key(step) if hasattr(node, "keys") else node.lc.item(step)
                node = node[step]
            except (AttributeError, KeyError, IndexError, TypeError):
                continue  # a union's tag or a key given on the command line: not in the file
            line = position[0] + 1
        file = f"{self.path}:{line}" if line else str(self.path)
        parts = ", ".join(said for at, said in self.options.items() if at[: len(keys)] == keys)
        if not parts:
            return file
        return f"{file} with {parts}" if line or not keys else parts  # a block that is not in the file is theirs

    def below(self, location: Location) -> "Document":
        """The part at `location`, for settings that know only their own keys."""
        content: Any = self.content
        tree: Any = self.tree
        line = None
        for step in location:
            content = content[step]
            line = tree.lc.key(step)[0] + 1 if step in tree else None
            tree = tree[step] if isinstance(tree.get(step), Mapping) else {}
        options = {at[len(location) :]: said for at, said in self.options.items() if at[: len(location)] == location}
        return replace(self, content=content, tree=tree, options=options, line=line)

    def _keys(self, location: Location) -> Location:
        """`location` without a union's tags, which stand nowhere."""
        node: Any = self.content
        found: list[int | str] = []
        for step in location:
            try:
                node = node[step]
            except (KeyError, IndexError, TypeError):
                continue
            found.append(step)
        return tuple(found)


def refuse_nul_in(content: Any, document: Document, at: Location = ()) -> None:
    """InputError when a text anywhere in `content` holds a NUL character, which ends every path that it stands in."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            refuse_nul_in(value, document, (*at, key))
    elif isinstance(content, list):
        for number, value in enumerate(content):
            refuse_nul_in(value, document, (*at, number))
    elif isinstance(content, str) and "\0" in content:
        name = ".".join(map(str, at))
        raise InputError(f"{document.where(at)}: `{name}` holds a NUL character; remove it")


def plain(node: Any) -> Any:
    """The parser's own containers and numbers as JSON's."""
    if isinstance(node, Mapping):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str | bytes):
        return [plain(value) for value in node]
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return str(node)


YAML_HINTS = {
    "mapping values are not allowed": "; indent the line as those beside it, and write `key: value` in the one above",
    "cannot start any token": "; indent with spaces, and put a value that begins so in quotes",
}
"""What to do, by what the parser says of the two most common slips."""


@lru_cache(2)  # a peer's two files, for its forks: one that lists a hundred peers takes 20 ms
def _tree(text: str, path: Path) -> Mapping[str, Any]:
    """The parser's own containers, which nobody changes. Raises InputError as `read` does."""
    too_deep = f"{path}: its values are nested too deep; write it flatter"
    if _depth(text) > MAX_DEPTH:
        raise InputError(too_deep)
    try:
        tree = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        hint = next((hint for said, hint in YAML_HINTS.items() if said in str(error.problem)), "")
        raise InputError(f"{path}{line}: not valid YAML: {error.problem}{hint}") from None
    except YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(too_deep) from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(tree, Mapping):
        raise InputError(f"{path}: holds no `key: value` pairs")
    if _values(tree, {}) > MAX_VALUES:
        raise InputError(f"{path}: its aliases stand for more than {MAX_VALUES:,} values; write fewer")
    return tree


def _depth(text: str) -> int:
    """How many brackets are open at most; those in quotes and comments count too."""
    depth = most = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        most = max(most, depth)
    return most


def _values(node: Any, known: dict[int, int]) -> int:
    """How many values a node stands for, each alias counted as what it repeats."""
    if isinstance(node, str | bytes) or not isinstance(node, Mapping | Sequence):
        return 1
    if id(node) not in known:
        known[id(node)] = 1  # also of one that holds itself
        below = node.values() if isinstance(node, Mapping) else node
        known[id(node)] += sum(_values(one, known) for one in below)
    return known[id(node)]


def scalar(text: str) -> Any:
    """A value as YAML 1.2 reads it: `1e-3` is a number, `true` a truth value. ValueError: it is no YAML."""
    try:
        return plain(YAML(typ="safe", pure=True).load(text))
    except YAMLError as error:
        said = error.problem if isinstance(error, MarkedYAMLError) else str(error)
        raise ValueError(said or "it is empty") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def put(content: dict[str, Any], name: str, value: Any) -> None:
    """Set `protocol.gamma`, say, in plain content; what is on the way there is copied. ValueError at a list."""
    *parents, last = name.split(".")
    node = content
    for parent in parents:
        below = node.get(parent)
        if isinstance(below, list):
            raise ValueError(f"`{parent}` is a list")
        node[parent] = dict(below) if isinstance(below, dict) else {"name": below} if below else {}
        node = node[parent]
    node[last] = value


def dump_yaml(content: Mapping[str, Any]) -> str:
    """Plain content as YAML text, its keys in their order."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = StringIO()
    writer.dump(dict(content), stream)
    return stream.getvalue()


def validate(kind: type[S], content: Any, document: Document, components: Mapping[Location, type[Settings]]) -> S:
    """`content` as settings of `kind`; InputError names file, line and the nearest known key.

    components: the class of each block whose class its `name` chooses, by its place; known keys are looked up there.
    """
    try:
        return kind.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        causes = _causes(error.errors())
        # Of a file in a later format nothing else can be judged.
        causes = [one for one in causes if one["loc"] == ("format",)] or causes
        said = [_sentence(one, kind, document, components) for one in causes]
        raise InputError("; ".join([*dict.fromkeys(said)][:3])) from None


def _causes(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Without those that follow from others: a default made from a wrong key, a list too short for its wrong items, a
    key that data of a peer's own have from the federation's."""
    places = [one["loc"] for one in errors]

    def follows(one: ErrorDetails) -> bool:
        place = one["loc"]
        below = any(len(other) > len(place) and other[: len(place)] == place for other in places)
        inherited = place[:1] == ("ring",) and place[2:3] == ("data",) and place[2:] in places
        return one["type"] == "default_factory_not_called" or (one["type"] == "too_short" and below) or inherited

    return [one for one in errors if not follows(one)]


def _sentence(
    error: ErrorDetails, kind: type[Settings], document: Document, components: Mapping[Location, type[Settings]]
) -> str:
    location = error["loc"]
    where = document.where((*location, "kind") if error["type"] == "union_tag_invalid" else location)
    name = ".".join(str(step) for step in location)
    if error["type"] == "extra_forbidden":
        key = str(location[-1])
        block = next((place for place in components if location[: len(place)] == place), ())
        known = keys(components.get(block, kind), location[len(block) : -1])
        hint = suggest(key, [one for one in known if one != key], elsewhere(location, kind, components))
        return f"{where}: unknown key `{key}`; {hint}"
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        known = re.findall("'([^']+)'", context["expected_tags"])
        what = location[0] if location[0] == "behaviour" else location[-1]
        return f"{where}: unknown {what} `{context['tag']}`; {suggest(context['tag'], known)}"
    if error["type"] == "union_tag_not_found":
        return f"{where}: `{name}.kind` is missing"
    if error["type"] == "missing":
        return f"{where}: `{name}` is missing"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type") and error["input"] is None:
        return f"{where}: `{name}` is empty; write its settings there, or leave it out"
    if wish := _wish(location, kind, document, components):
        return wish
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_pattern_mismatch" and (few := re.fullmatch(r"\^\[(.+)\]\+\$", error["ctx"]["pattern"])):
        message = f"write one or more of the characters {few[1]}, and no others"
    shown = json.dumps(error["input"], default=str)
    given = f" (given: {shown})" if len(shown) < 60 and error["type"] != "value_error" else ""
    return f"{where}: {f'`{name}`: ' if name else ''}{message[0].lower() + message[1:]}{given}"


def _wish(
    location: Location, kind: type[Settings], document: Document, components: Mapping[Location, type[Settings]]
) -> str | None:
    """What the key that holds `location` takes, where its class says so; once, whatever of it is wrong."""
    block = next((place for place in components if location[: len(place)] == place and location != place), ())
    depth = len(block) + 1
    field = components.get(block, kind).model_fields.get(str(location[depth - 1])) if location else None
    wanted = next((one.words for one in field.metadata if isinstance(one, Wanted)), None) if field else None
    if wanted is None:
        return None
    given: Any = document.content
    for step in location[:depth]:
        given = given[step]
    shown = "nothing" if given is None else json.dumps(given, default=str)
    name = ".".join(map(str, location[:depth]))
    return f"{document.where(location[:depth])}: `{name}` wants {wanted}" + (
        f" (given: {shown})" if len(shown) < 60 else ""
    )


MAX_BLOCKS_NAMED = 3
"""A key that more blocks know says nothing of where it was meant to stand."""


def elsewhere(location: Location, kind: type[Settings], components: Mapping[Location, type[Settings]]) -> list[str]:
    """Where a key that does not belong at `location` would, in words.

    components: the class of each block whose class its `name` chooses, by its place.
    """
    *at, key = location
    key = str(key).replace("optimiz", "optimis")
    if any(isinstance(step, int) for step in at):
        return []  # what one of several is like, another block does not tell
    blocks: dict[Location, type[Settings]] = {place: one for place, one in components.items() if len(place) == 1}
    known = [(*place, *below) for place, one in [*blocks.items(), ((), kind)] for below in _blocks_with(key, one)]
    # Not in the block itself, where another of its kinds knows the key.
    others = [place for place in dict.fromkeys(known) if not place or tuple(at[: len(place)]) != place]
    named = [f"`{'.'.join(map(str, place))}.{key}`" if place else f"`{key}` outside of all blocks" for place in others]
    if ("protocol",) not in others:
        # `epochs` of a protocol that has `extractor_epochs` and `head_epochs`.
        longer = keys(blocks["protocol",], ()) if ("protocol",) in blocks else []
        named = [f"`protocol.{one}`" for one in longer if one.endswith(f"_{key}")] + named
    return named if len(named) <= MAX_BLOCKS_NAMED else []


def _blocks_with(key: str, kind: type[Settings]) -> list[Location]:
    """The blocks of `kind` that know the key: itself, and those right below it."""
    blocks: list[Location] = [(), *((name,) for name in keys(kind, ()))]
    return [block for block in blocks if key in keys(kind, block)]


def keys(kind: type[Settings], location: Location) -> list[str]:
    """The keys known at `location` below `kind`, looked up in its JSON schema."""
    schema = _schema(kind)
    definitions = schema.get("$defs", {})
    nodes = [schema]
    for step in location:
        below: list[Any] = []
        for node in nodes:
            below += _below(node, step, definitions)
        # A union's tag is no key: stay, but with the one it chooses.
        nodes = below or [node for node in nodes if _tag(node) == step] or nodes
    return sorted({key for node in nodes for key in node.get("properties", {})})


@lru_cache(maxsize=64)
def _schema(kind: type[Settings]) -> dict[str, Any]:
    """Made once: it takes 30 ms, and one mistake is looked up in it hundreds of times."""
    return kind.model_json_schema()


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
