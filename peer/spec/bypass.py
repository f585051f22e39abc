"""Whether a federation can go on without some of its members, and take them in again."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peer.spec.federation import Spec


def against_bypass(spec: "Spec") -> Iterator[tuple[str, str]]:
    """Why nobody can be lost or taken in during the run, and the way out."""
    protocol, most = spec.protocol, len(spec.ring)
    if most < 3:
        yield f"of {most} peers no majority is left when one is lost", "add peers"
    if protocol.graph == "none":
        yield f"the peers of `{protocol.name}` are not connected, so none is missed", "choose another protocol"
    if why := protocol.why_members_are_fixed():
        yield f"`{protocol.name}` needs all its members: {why}", "choose another protocol"
    if spec.dial_out:
        yield f"`{spec.dial_out[0]}` dials out, and members must reach each other", "give it an `address`"
    if spec.stop_early:
        yield "`stop_early` counts on everybody's figures of all rounds", "leave out `stop_early`"
    if spec.wire.kind == "top-k":
        yield "`wire: top-k` counts on all that was sent before", "choose another `wire`"
    if spec.start_with is not None and not most < 2 * spec.start_with <= 2 * most:
        yield f"`start_with: {spec.start_with}` is not more than half of {most} peers", "choose a number that is"
