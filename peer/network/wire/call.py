"""One call of a collective: the number that names its messages, and what they are."""

from dataclasses import dataclass, replace
from functools import cached_property

from peer.network.wire.frames import call_tag


@dataclass(frozen=True)
class Call:
    """Every peer makes the same calls in the same order; a call has up to 65,536 steps from `step` on."""

    round: int
    step: int
    collective: str
    name: str
    """Of the vector or record."""
    scalars: tuple[str, ...] = ()
    """Names of the numbers that go with it, in the order in which they are sent."""

    def at(self, step: int) -> "Call":
        """A later step of the same call."""
        return replace(self, step=self.step + step)

    @cached_property
    def tag(self) -> int:
        """What travels of the names: peers that call one another's numbers by other names find out."""
        return call_tag(self.collective, *self.scalars)

    def __str__(self) -> str:
        names = "".join(f", {name}" for name in self.scalars)
        return f"{self.collective}(`{self.name}`{names})"
