"""The blocks of federation.yaml: the members and their addresses, how vectors travel, simulated adversaries, and when
training ends.

`named` blocks have a class that their `name` chooses: protocol, task, data. A simulated adversary misbehaves because
the spec says so, for experiments, and all peers know it. Peers that lie without saying so are another matter:
SECURITY.md."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import ceil
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PlainValidator,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from peer.learning.data.sources import Source, source_type
from peer.learning.tasks import Task, task_class
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.network.transport.addresses import split
from peer.network.wire.codec import Codec
from peer.plugins import load_class
from peer.protocols.base import Protocol
from peer.protocols.declarations import Share
from peer.protocols.registry import protocol_class
from peer.settings import Settings, kind_of_word
from peer.views.view import View


def _named(find: Callable[[str], type[Settings]]) -> PlainValidator:
    """A block whose class its `name` chooses. What that class finds wrong is told as of the block's own keys."""
    return PlainValidator(
        lambda raw: (
            raw if isinstance(raw, Settings) else find(raw["name"]).model_validate_json(json.dumps(raw), strict=True)
        )
    )


AnyProtocol = Annotated[SerializeAsAny[Protocol], _named(protocol_class)]
AnyTask = Annotated[SerializeAsAny[Task], _named(task_class)]
AnySource = Annotated[SerializeAsAny[Source], _named(source_type)]

MAX_PORT = 65_535
Id = Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=64)]


def _address(text: str) -> str:
    found = re.fullmatch(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:\[\]]{1,253}):([0-9]{1,5})", text)
    if not found or not 1 <= int(found[1]) <= MAX_PORT:
        raise ValueError(f"`{text}` is not host:port; write one such as 127.0.0.1:7700 or [::1]:7700")
    return text


Address = Annotated[str, AfterValidator(_address)]


def _on_loopback(raw: object) -> object:
    """A port alone is one of this machine, for this machine."""
    is_port = isinstance(raw, int) and not isinstance(raw, bool)
    return f"127.0.0.1:{raw}" if is_port or (isinstance(raw, str) and raw.isdigit()) else raw


Port = Annotated[Address, BeforeValidator(_on_loopback)]
"""host:port, or a port of 127.0.0.1."""
TrackerName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class Member(Settings):
    """One peer of the federation."""

    id: Id
    """Lower-case letters, digits and hyphens."""
    address: Address | None = None
    """host:port at which the other peers reach it."""
    data: AnySource | None = None
    """This peer's [own data](running.md#data-of-your-own)."""
    dials_out: bool | None = None
    """`true`, without `address`, for a peer that [cannot be reached](deploying.md#sites-that-can-only-dial-out)."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.dials_out and self.address:
            raise ValueError(f"`{self.id}` has both an `address` and `dials_out`; leave out one of them")
        if not self.dials_out and not self.address:
            raise ValueError(
                f"`{self.id}` has no `address`; write host:port at which the others reach it, or `dials_out: true` "
                "where nobody can"
            )
        return self


class Machine(Settings):
    """A peer's assumed machine, for `resources: pinned`."""

    cores: Annotated[float, Field(ge=0, le=1e6)]
    """Free cores."""
    memory: Annotated[float, Field(ge=0, le=1e6)]
    """Free memory in GiB."""


ANY_ADDRESS = ("0.0.0.0", "::")
"""Hosts that stand for all addresses of a machine."""


def ports_of(first: str, ids: Iterable[str]) -> dict[str, str]:
    """host:port by id, the first of them at `first`."""
    host, _, port = first.rpartition(":")
    return {id: f"{host}:{int(port) + number}" for number, id in enumerate(ids)}


def why_no_ports(first: str, ring: Mapping[str, str | None]) -> str | None:
    """Why the peers, whose addresses `ring` has by id, cannot serve figures there; None if they can."""
    host, port = split(first)
    if port + len(ring) - 1 > MAX_PORT:
        highest = MAX_PORT - len(ring) + 1
        return f"`metrics` begins at port {port} and {len(ring)} are needed; begin with {highest} at most"
    listening = [split(address) for address in ring.values() if address]
    taken = {at for where, at in listening if where == host or host in ANY_ADDRESS}
    for number, id in enumerate(ring):
        if port + number in taken:
            where = f"port {port + number}, where a peer listens"
            return f"`metrics` of `{id}` would be at {where}; begin with another port"
    return None


class Float32(Settings):
    """Every vector as it is."""

    kind: Literal["float32"] = "float32"

    def shortens(self, share: Share) -> bool:
        """Whether that vector travels in fewer bytes than it has."""
        return False


class Bfloat16(Settings):
    """2 bytes per value."""

    kind: Literal["bfloat16"] = "bfloat16"

    def shortens(self, share: Share) -> bool:
        return not share.bytes


class TopK(Settings):
    """The most changed values only."""

    kind: Literal["top-k"] = "top-k"
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """Share of values: k = ⌈share·p⌉ of p."""

    def shortens(self, share: Share) -> bool:
        return not share.own or share.update

    def kept(self, size: int) -> int:
        """k."""
        return ceil(self.share * size)


def _codec(name: str, options: Mapping[str, JsonValue]) -> Codec:
    found: Codec = load_class(name, Codec).model_validate_json(json.dumps(options), strict=True)
    return found


class Coded(Settings):
    """As a [codec of your own](wire.md#a-codec-of-your-own) encodes extractor and head."""

    kind: Literal["codec"]
    name: str
    """`module:Name`, or the name that an installed package gives it."""
    options: dict[str, JsonValue] = Field(default_factory=dict, validate_default=True)
    """Its settings."""

    @field_validator("options")
    @classmethod
    def _fit(cls, options: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        if "name" in info.data:
            _codec(info.data["name"], options)
        return options

    @cached_property
    def codec(self) -> Codec:
        return _codec(self.name, self.options)

    def shortens(self, share: Share) -> bool:
        return not share.bytes and share.part is not None


Wire = Annotated[
    Annotated[Float32 | Bfloat16 | TopK | Coded, Field(discriminator="kind")],
    BeforeValidator(kind_of_word, json_schema_input_type=Literal["float32", "bfloat16", "top-k"] | TopK | Coded),
]
"""The `wire` block; a word alone is its kind."""


class LabelFlip(Settings):
    """Trains on wrong labels and reports their mix; tested against true ones."""

    kind: Literal["label-flip"]
    """Wrong labels."""
    rate: float = Field(default=0.5, gt=0, le=1)
    """Share of training labels replaced, by each other class equally often."""


class Noise(Settings):
    """Adds Gaussian noise, new in each message, to what it sends."""

    kind: Literal["noise"]
    """Noise on what is sent."""
    scale: float = Field(default=1.0, gt=0, le=1e6)
    """Standard deviation."""


class Stale(Settings):
    """Always sends what it sent first."""

    kind: Literal["stale"]
    """Always the first vector."""


class SignFlip(Settings):
    """Sends a model part w as 2·w₀ − w, w₀ from the round's start; another vector as its negative."""

    kind: Literal["sign-flip"]
    """Changes reversed."""


Behaviour = LabelFlip | Noise | Stale | SignFlip
AnyBehaviour = Annotated[
    Annotated[Behaviour, Field(discriminator="kind")],
    BeforeValidator(
        kind_of_word, json_schema_input_type=Behaviour | Literal["label-flip", "noise", "stale", "sign-flip"]
    ),
]
"""A behaviour's block; a word alone is its kind."""


def describe_behaviours(behaviours: Mapping[str, Behaviour]) -> dict[str, str]:
    """Behaviours in words, by id, such as `label-flip, rate 0.5`."""
    return {
        id: ", ".join([one.kind, *(f"{key} {value:g}" for key, value in one if key != "kind")])
        for id, one in behaviours.items()
    }


class StopEarly(Settings):
    """Peers decide by the mean of their headline figure on held-back samples, which a liar can move."""

    patience: int = Field(default=5, ge=1)
    """Evaluations without a better mean before the end."""
    min_rounds: int = Field(default=1, ge=1)
    """Minimum number of rounds."""
    margin: float = Field(default=0.0, ge=0)
    """Minimum improvement of the mean."""


class FinalEvaluation(Settings):
    """A closer look at each peer's last model on its test samples."""

    resamples: int = Field(default=1000, ge=100, le=10_000)
    """Draws for each 95 % interval."""
    predictions: bool = False
    """Write each test sample's target, answer and outputs to <id>/predictions.csv."""


class Keep(Settings):
    """Checkpoints that each peer keeps, so that all can [go back](backups.md)."""

    every: int = Field(ge=1)
    """Keep the checkpoint of every round that this divides."""
    last: int = Field(default=3, ge=1)
    """How many, the newest first."""


class Rewind(Settings):
    """`1500` is short for `{round: 1500}`. [Once members have changed](backups.md#after-a-change-of-members), give all
    three keys."""

    round: int = Field(ge=0)
    """The last round that counts."""
    view: int | None = Field(default=None, ge=1)
    """One more than the last view that any peer knows."""
    members: Annotated[list[Id], AfterValidator(lambda ids: sorted({*ids}))] = Field(default_factory=list)
    """Its members, which hold that round; others may be admitted later."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if (self.view is None) == bool(self.members):
            raise ValueError("`view` and `members` go together; give both, or the round alone")
        return self

    @model_serializer
    def _plain(self) -> int | dict[str, JsonValue]:
        return self.round if self.view is None else {**vars(self)}

    def as_view(self, order: Sequence[str]) -> View | None:
        """The view that it sets, if it does."""
        if self.view is None:
            return None
        return View(self.view, tuple(id for id in order if id in self.members), self.round + 1)


AnyRewind = Annotated[Rewind, BeforeValidator(lambda given: {"round": given} if type(given) is int else given)]


class FineTune(Settings):
    """By plain SGD after the last round; nothing leaves the peer."""

    epochs: int = Field(default=3, ge=1)
    """Passes over the training samples."""
    part: Literal["head", "model"] = "model"
    """The part that is trained."""
    lr: Annotated[float, Field(gt=0)] = 0.01
    """Learning rate."""
    batch_size: int = Field(default=64, ge=1)
    """Samples a step."""

    def phase(self) -> Phase:
        return Phase(self.part, self.epochs, SGD(self.lr), self.batch_size)
