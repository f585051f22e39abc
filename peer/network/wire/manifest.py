"""What may travel: every vector and record by name and size. What is not in it has no way onto the wire."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property


class NotDeclaredError(Exception):
    """A message that the manifest does not allow; says which and why."""


@dataclass(frozen=True)
class Payload:
    """One kind of message: a named float32 vector with a few float64 scalars beside it, or scalars alone."""

    name: str
    floats: int
    """Length of the whole float32 vector; a message may carry a part of it."""
    doubles: int
    """At most so many float64 scalars."""
    first_round: int
    last_round: int
    tensors: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    """Name, shape and dtype of the tensors that the vector is made of, in order."""
    private: tuple[int, int] = (0, 0)
    """Where in the vector a head lies (start, end), if one does: such bytes are counted on their own."""


@dataclass(frozen=True)
class Manifest:
    """All payloads in the order that frames number them."""

    payloads: tuple[Payload, ...]
    shape: tuple[int, ...] = ()
    """Of one input, and how many classes: where each peer has data of its own, these may differ by mistake."""
    classes: int = 0

    @cached_property
    def digest(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def number(self, name: str, round: int) -> int:
        """Where the payload called `name` stands; NotDeclaredError when it may not travel in this round."""
        for number, payload in enumerate(self.payloads):
            if payload.name == name:
                if not payload.first_round <= round <= payload.last_round:
                    raise NotDeclaredError(f"`{name}` is not declared to travel in round {round}")
                return number
        raise NotDeclaredError(f"no vector or record called `{name}` is declared to leave a peer")

    def check(self, number: int, round: int, doubles: int, offset: int, length: int) -> Payload:
        """The payload of an incoming frame, if its header keeps to the declaration."""
        if number >= len(self.payloads):
            raise NotDeclaredError(f"payload number {number} is not declared")
        payload = self.payloads[number]
        if not payload.first_round <= round <= payload.last_round:
            raise NotDeclaredError(f"`{payload.name}` is not declared to travel in round {round}")
        if doubles > payload.doubles:
            raise NotDeclaredError(f"{doubles} scalars came with `{payload.name}`, declared are {payload.doubles}")
        if offset + length > payload.floats:
            raise NotDeclaredError(
                f"floats {offset} to {offset + length} of `{payload.name}`, which has {payload.floats}"
            )
        return payload

    @property
    def largest(self) -> int:
        """Bytes of the largest message."""
        return max((4 * payload.floats + 8 * payload.doubles for payload in self.payloads), default=0)
