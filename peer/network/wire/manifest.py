"""What may travel: every vector and record by name and size. What is not in it has no way onto the wire."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import torch

Kind = Literal["float32", "uint8"]
DTYPES: dict[Kind, torch.dtype] = {"float32": torch.float32, "uint8": torch.uint8}


class NotDeclaredError(Exception):
    """A message that the manifest does not allow; says which and why."""


@dataclass(frozen=True)
class Payload:
    """One kind of message: a named vector with a few float64 scalars beside it, or scalars alone."""

    name: str
    size: int
    """The most values of the vector; a message may carry a part of them."""
    doubles: int
    """At most so many float64 scalars."""
    first_round: int
    last_round: int
    kind: Kind = "float32"
    """uint8: bytes into which nobody looks."""
    tensors: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    """Name, shape and dtype of the tensors that the vector is made of, in order."""
    head: tuple[int, int] = (0, 0)
    """Where in the vector a head lies (start, end), by its declaration: such bytes are counted on their own."""

    @property
    def width(self) -> int:
        """Bytes of one value."""
        return DTYPES[self.kind].itemsize

    def travels(self, round: int) -> bool:
        return self.first_round <= round <= self.last_round

    def head_bytes(self, offset: int, length: int) -> int:
        """How many of `length` bytes from `offset` on are a head's."""
        start, end = (self.width * place for place in self.head)
        return max(0, min(offset + length, end) - max(offset, start))


@dataclass(frozen=True)
class Manifest:
    """All payloads in the order that frames number them."""

    payloads: tuple[Payload, ...]
    data: tuple[str, ...] = ()
    """What the peers' data must agree in, one fact each: where each has data of its own, it may differ by mistake."""

    @cached_property
    def digest(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def number(self, name: str, round: int) -> int:
        """Where the payload called `name` stands; NotDeclaredError when it may not travel in this round."""
        named = [number for number, payload in enumerate(self.payloads) if payload.name == name]
        for number in named:
            if self.payloads[number].travels(round):
                return number
        if named:
            raise NotDeclaredError(f"`{name}` is not declared to travel in round {round}")
        raise NotDeclaredError(f"no vector or record called `{name}` is declared to leave a peer")

    def check(self, number: int, round: int, doubles: int, offset: int, length: int) -> Payload:
        """The payload of a frame whose header keeps to the declaration; `offset` and `length` in bytes."""
        if number >= len(self.payloads):
            raise NotDeclaredError(f"payload number {number} is not declared")
        payload = self.payloads[number]
        if not payload.travels(round):
            raise NotDeclaredError(f"`{payload.name}` is not declared to travel in round {round}")
        if doubles > payload.doubles:
            raise NotDeclaredError(f"{doubles} scalars came with `{payload.name}`, declared are {payload.doubles}")
        if offset % payload.width or length % payload.width or offset + length > payload.width * payload.size:
            raise NotDeclaredError(
                f"bytes {offset} to {offset + length} of `{payload.name}`, which has {payload.width * payload.size}"
            )
        return payload

    @property
    def largest(self) -> int:
        """Bytes of the largest message."""
        return max((payload.width * payload.size + 8 * payload.doubles for payload in self.payloads), default=0)
