"""Whether a federation can go on without some of its members and take them in again, and do so once more."""

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
    shared = {*protocol.by_peer, *(share.vector for share in protocol.shares(spec.rounds))}
    if unsent := [name for name in protocol.replicated if name not in shared]:
        way_out = f"declare Share({unsent[0]!r}, size=..., rounds=range(0)) in `shares`"
        yield f"`{protocol.name}` has no way to give `{unsent[0]}` to who is taken in", way_out
    if spec.dial_out:
        yield f"`{spec.dial_out[0]}` dials out, and members must reach each other", "give it an `address`"
    if spec.stop_early:
        yield "`stop_early` counts on everybody's figures of all rounds", "leave out `stop_early`"
    if spec.wire.kind == "top-k":
        yield "`wire: top-k` counts on all that was sent before", "choose another `wire`"
    if spec.start_with is not None and not most < 2 * spec.start_with <= 2 * most:
        yield f"`start_with: {spec.start_with}` is not more than half of {most} peers", "choose a number that is"


def against_replay(spec: "Spec") -> Iterator[tuple[str, str]]:
    """Why recorded views cannot be replayed to the same bits, and the way out."""
    if spec.on_loss != "bypass":
        yield "views are those of a run with `on_loss: bypass`", "write that"
    if spec.recording is None:
        yield "no run is named", "write `recording: DIR`, the directory of the run whose views these are to be"
    if not spec.training.same_bits:
        yield "`training` goes by the clock, and so differs from run to run", "leave its `budget` of seconds out"
    if "resources" in type(spec.protocol).model_fields and spec.protocol.resources_from == "measured":
        yield f"what `{spec.protocol.name}` measures differs from run to run", "pin its `resources`"
