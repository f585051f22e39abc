"""What a protocol declares to send: the one place that knows whether something may leave a peer in a round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.model.layout import PARTS, ModelPart
from peer.learning.model.model import Model
from peer.text import plural

MAX_NUMBERS = 4096
"""The most numbers in a record, or with a vector: as many as fit into a frame (`MAX_DOUBLES` of
`peer.network.wire.frames`, which protocols must not import)."""


@dataclass(frozen=True)
class Share:
    """A vector that may leave the peer, and the rounds in which it may (0 is the set-up before round 1)."""

    vector: str
    """`extractor`, `head` or `model`, or a name of the protocol's own."""
    scalars: int = 0
    """How many float64 numbers travel with it, not counting the weight of a mean."""
    rounds: range | None = None
    """The rounds in which it may leave; None: all."""
    size: int | None = None
    """The most float32 values, or bytes, of a vector of the protocol's own. None: as many values as the model."""
    bytes: bool = False
    """Whether a vector of the protocol's own is an opaque uint8 tensor (ciphertext, half precision, sparse)."""
    like: ModelPart | None = None
    """The part of the model as which a vector of the protocol's own is laid out, so that a head's bytes in it can be
    counted. None: it is unknown whether it contains a head."""
    update: bool = False
    """Whether a vector of the protocol's own, laid out like a part, is a difference, such as a gradient, so that what
    is not sent now can follow later. With `wire: top-k` only its largest values leave, and the others count as 0."""
    whole: bool = False
    """Whether it is useful only as a whole, such as a model that replaces another: then `wire: top-k` is refused."""

    def __post_init__(self) -> None:
        if not isinstance(self.vector, str) or not self.vector:
            raise ValueError(f"a share names its vector, such as Share('extractor'), and not {self.vector!r}")
        if not 0 <= self.scalars <= MAX_NUMBERS:
            raise ValueError(f"`{self.vector}`: scalars are 0 to {MAX_NUMBERS} numbers, not {self.scalars}")
        if self.rounds is not None and self.rounds.step < 1:
            raise ValueError(f"`{self.vector}`: rounds ascend, such as range(1, rounds + 1), and not {self.rounds}")
        if self.size is not None and self.size < 1:
            raise ValueError(f"`{self.vector}`: size is 1 or more, not {self.size}")
        if self.like is not None and self.like not in PARTS:
            raise ValueError(f"`{self.vector}`: like is one of {', '.join(PARTS)}, not {self.like!r}")
        if not self.own and (self.size is not None or self.bytes or self.like is not None or self.update):
            raise ValueError(f"`{self.vector}` is a part of the model: leave out size, bytes, like and update")
        if self.update and (self.like is None or self.bytes):
            raise ValueError(f"`{self.vector}`: update goes with like='model' (or a part) and without bytes")

    @property
    def own(self) -> bool:
        """Whether it is a vector of the protocol's own, rather than a part of the model."""
        return self.vector not in PARTS

    @property
    def part(self) -> ModelPart | None:
        """The part of the model as which it is laid out, by its name or its declaration; None: neither says."""
        return next((part for part in PARTS if part == self.vector), self.like)

    @property
    def holds_head(self) -> bool:
        """Whether a head is sent with it, as declared."""
        return self.part in ("head", "model")

    def travels(self, round: int) -> bool:
        return self.rounds is None or round in self.rounds

    def overlaps(self, other: "Share") -> bool:
        """Whether both declare the same vector in the same round."""
        if self.vector != other.vector:
            return False
        both = self.rounds, other.rounds
        return None in both or any(round in (self.rounds or ()) for round in other.rounds or ())


@dataclass(frozen=True)
class Record:
    """A few float64 numbers that every peer sends to all others by `gather`."""

    name: str
    size: int | Literal["classes", "kinds", "peers"] = 1
    """The exact number of numbers; "kinds": as many as `peer.proportions` has."""

    def length(self, model: Model, peers: int) -> int:
        match self.size:
            case "classes":
                return model.classes
            case "kinds":
                return model.task.kinds(model.classes)
            case "peers":
                return peers
        return self.size


class Declarations:
    """All that a protocol declares to send in a run, and whether a vector keeps to it."""

    def __init__(self, protocol: str, shares: Sequence[Share], records: Sequence[Record]) -> None:
        """Raises ValueError if two declarations contradict each other."""
        self.protocol, self.shares, self.records = protocol, tuple(shares), tuple(records)
        for number, share in enumerate(self.shares):
            if any(share.overlaps(other) for other in self.shares[:number]):
                raise ValueError(f"`{share.vector}` is declared twice for the same rounds; declare it once")
        names = [*{share.vector for share in self.shares}, *(record.name for record in self.records)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two declarations are called `{twice}`; give each a name of its own")

    def travelling(self, round: int) -> tuple[Share, ...]:
        """The vectors that may leave in a round."""
        return tuple(share for share in self.shares if share.travels(round))

    def heads_stay(self, round: int) -> bool:
        """Whether no vector that may leave in a round holds a head, by what is declared."""
        return not any(share.holds_head for share in self.travelling(round))

    def share(self, vector: str, round: int) -> Share:
        """The declaration of that vector for that round; InputError when there is none."""
        if not isinstance(vector, str):
            raise InputError(
                f"`{self.protocol}` sends a {type(vector).__name__} in round {round}; give its name, such as "
                '"extractor": what is not a part of the model is kept in `peer.state` under one'
            )
        for share in self.travelling(round):
            if share.vector == vector:
                return share
        declared = ", ".join(f"`{share.vector}`" for share in self.travelling(round)) or "nothing"
        raise InputError(
            f"`{self.protocol}` sends `{vector}` in round {round}, and does not declare that; add it to `shares`, "
            f"which has {declared} for this round"
        )

    def record(self, name: str, round: int) -> Record:
        """The declaration of that record; InputError when there is none."""
        for record in self.records:
            if record.name == name:
                return record
        raise InputError(
            f"`{self.protocol}` gathers `{name}` in round {round}, and does not declare that; add it to `records`"
        )

    def check(self, share: Share, vector: Tensor, round: int, longest: int) -> None:
        """InputError unless a vector is as declared; `longest`: values of one of which no size is declared."""
        name = f"`{self.protocol}` sends `{share.vector}` in round {round}"
        kind, hint = (torch.uint8, ".to(torch.uint8)") if share.bytes else (torch.float32, ".float()")
        if not isinstance(vector, Tensor) or vector.dtype != kind:
            given = str(getattr(vector, "dtype", type(vector).__name__)).removeprefix("torch.")
            wanted = str(kind).removeprefix("torch.")
            raise InputError(f"{name} as {given}; only {wanted} leaves a peer here: write {hint}")
        if vector.ndim != 1:
            raise InputError(f"{name} with shape {tuple(vector.shape)}; make it a vector of one dimension: .flatten()")
        longest = longest if share.size is None else share.size
        if vector.numel() > longest:
            raise InputError(
                f"{name} with {vector.numel()} values, and declares at most {longest}; say so in `shares` "
                f"(Share({share.vector!r}, size=...))"
            )

    def check_scalars(self, share: Share, scalars: Mapping[str, float], round: int) -> None:
        """InputError when more numbers go beside a vector than are declared."""
        if len(scalars) > share.scalars:
            raise InputError(
                f"`{self.protocol}` sends `{share.vector}` in round {round} with {plural(len(scalars), 'scalar')} "
                f"({', '.join(scalars)}), and declares {share.scalars}; say so in `shares` "
                f"(Share({share.vector!r}, scalars={len(scalars)}))"
            )

    def check_record(self, name: str, values: Tensor, round: int, length: int) -> None:
        """InputError unless a record has as many numbers as declared."""
        if values.numel() != length:
            raise InputError(
                f"`{self.protocol}` gathers `{name}` in round {round} with {plural(values.numel(), 'number')}, and "
                f"declares {length}; say so in `records` (Record({name!r}, {values.numel()}))"
            )
