"""Who belongs to a federation: an entry of its ring, and what its machine is taken to have."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from peer.settings import Settings
from peer.spec.named import AnySource

MAX_PORT = 65_535
Id = Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=64)]


def _address(text: str) -> str:
    found = re.fullmatch(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:\[\]]{1,253}):([0-9]{1,5})", text)
    if not found or not 1 <= int(found[1]) <= MAX_PORT:
        raise ValueError(f"`{text}` is no host:port; write one such as 127.0.0.1:7700 or [::1]:7700")
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
    """This peer's own data instead of its part of the federation's; accuracies are then `local`. What it lacks is as in
    the federation's `data`, unless that has another `name`. Its own file may have another `data`."""
    dials_out: bool | None = None
    """`true` in place of an `address` for a peer that nobody can reach, behind a firewall or a NAT: it opens all
    connections itself, and its neighbours need an `address`. See
    [deploying.md](deploying.md#sites-that-can-only-dial-out)."""

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
    """What a peer's machine is taken to have, for protocols that go by pinned resources."""

    cores: Annotated[float, Field(ge=0, le=1e6)]
    """Free cores."""
    memory: Annotated[float, Field(ge=0, le=1e6)]
    """Free memory in GiB."""
