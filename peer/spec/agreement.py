"""What the plain keys of a spec say, whether or not they are valid otherwise: what peers must agree on, and which user
code they name.

Each key that peers must agree on has a digest, by which a refusal names the keys that differ. Nothing here imports
torch: the launcher compares specs without it.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

ANEW = "rewinds that begin the views anew"
"""The entries of `rewinds` on which signatures depend, where there are others, which set a view."""
CHANGEABLE = ("finetune", "rewinds", "on_loss", "absence", "patience")
"""Keys that may change in a run, by a restart of all peers: nothing that was computed depends on them."""
NOT_COMPARED = ("format", "code", "recording", "metrics", "tensorboard", "tracker", "keep", "final_evaluation")
"""Keys of a spec in which peers may differ."""
PLACES = ("path", "root")
"""Keys that say where something lies on one machine."""
OWN = (("task",), ("model", "options"), ("data", "options"), ("training", "loop"), ("training", "step"))
"""The blocks whose keys a user's own code may choose, and where it may take those."""
ADDED: Mapping[str, Any] = {
    "task.judged_by": ["accuracy"],
    "task.class_weights": None,
    "task.focal": None,
    "training.loop": None,
    "training.sampler": None,
    "training.deterministic": True,
    "data.group": None,
    "data.impute": None,
    "data.class_names": [],
}
"""Keys that were added since release 0.1.0, such as `training.loop`, with the value that means what was done before.
With that value they are left out, so that peers of both releases agree, and a run goes on after an upgrade."""


Change = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Agreement:
    """What peers must agree on, as plain JSON, with a digest of each key, so that a refusal can name those that
    differ."""

    content: Mapping[str, Any]

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Self:
        """Take what peers must agree on from a spec's plain keys; a key without a value is left out.

        Where code, data, recordings and a file of weights lie, how many workers read the data, and which subscribers
        hear of events, is each machine's own business. Of the ring it is the ids and their order: addresses may change
        during a run and look different from another network, and a peer's own data are private to it. Whether the data
        go together (inputs, classes, columns) is compared in the handshake, by what they are.
        """
        kept = {key: value for key, value in content.items() if key not in NOT_COMPARED and value is not None}
        for place in (*OWN, ("data",)):
            kept = with_block(kept, place, _without_places)
        data = {key: value for key, value in kept["data"].items() if key not in ("download", "workers")}
        # What a file of weights comes to is compared by digest.
        model = {key: value for key, value in kept["model"].items() if key != "weights"}
        kept |= {"data": data, "model": model, "ring": [member["id"] for member in content["ring"]]}
        anew = [one for one in _entries(kept.get("rewinds")) if isinstance(one, int)]
        if anew != kept.get("rewinds", anew):
            kept[ANEW] = anew
        for key, value in ADDED.items():
            *block, name = key.split(".")
            kept = with_block(kept, block, _without(name, value))
        return cls(kept)

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each key's JSON."""
        return {key: sha256(value) for key, value in self.content.items()}

    @property
    def digest(self) -> str:
        """The SHA-256 of all keys together."""
        return sha256(self.content)


def _without_places(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block without what says where something lies."""
    return {key: value for key, value in block.items() if key not in PLACES}


def with_block(content: Mapping[str, Any], path: Sequence[str], change: Change) -> dict[str, Any]:
    """The content with the block at that path changed, if there is one."""
    if not path:
        return change(content)
    key, *below = path
    if not isinstance(content.get(key), Mapping):
        return {**content}
    return {**content, key: with_block(content[key], below, change)}


def _without(key: str, value: Any) -> Change:
    """Take a key out of a block if it has that value."""
    return lambda block: {name: one for name, one in block.items() if name != key or one != value}


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The keys whose digests differ between two agreements."""
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


def lasting_digest(digests: Mapping[str, str]) -> str:
    """The digest of what stays the same for a whole run, however it is continued or replayed, by the digests of its
    keys; it names the federation in signatures. Those from before a rewind that begins the views anew do not count."""
    lasting = {key: one for key, one in digests.items() if key not in ("rounds", "views", ANEW, *CHANGEABLE)}
    if (anew := digests.get(ANEW, digests.get("rewinds"))) not in (None, sha256([])):
        lasting["rewinds"] = anew
    return sha256(lasting)


def sha256(value: Any) -> str:
    """The SHA-256 (hex) of a value's JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


OURS = ("extras.cross_evaluation:", "extras.statistics:", "extras.surfaces:")
"""Modules of dfl's own that have a colon in their names in a spec, and run no code but dfl's."""


def user_code(content: Mapping[str, Any]) -> list[str]:
    """Every `module:Name` in the plain content of a spec, or of a part of it, whether or not it is valid otherwise."""
    return [name for name in _names(content) if ":" in name and not name.startswith(OURS)]


def _names(content: Mapping[str, Any]) -> Iterator[str]:
    for key in ("protocol", "model", "task", "wire"):
        yield from _name(content.get(key))
    yield from filter(_is_text, _entries(_block(content.get("task")).get("judged_by")))
    yield from _name(_block(content.get("protocol")).get("like"))
    for key in ("step", "loop"):
        yield from _name(_block(content.get("training")).get(key))
    yield from _name(content.get("tracker"))
    own = (_block(member).get("data") for member in _entries(content.get("ring")))
    for source in filter(None, (content.get("data"), *own)):
        yield from _of_source(source)


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
