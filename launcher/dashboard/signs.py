"""What a peer does now, so that it is seen without colours, too: a sign, a tone, and words."""

from collections.abc import Collection
from typing import Literal

from launcher.monitor.federation_view import OUTSIDE, FederationView
from launcher.monitor.peer_view import ENDED
from peer.text import printable

Tone = Literal["begins", "works", "talks", "waits", "good", "bad", "gone"]
Sign = tuple[str, Tone, str]
SIGNS: dict[str, Sign] = {
    "starting": ("…", "begins", "starts"),
    "joining": ("…", "begins", "calls its neighbours"),
    "ready": ("=", "waits", "is ready for the next round"),
    "training": ("▲", "works", "trains"),
    "communicating": ("⇄", "talks", "sends and receives"),
    "evaluating": ("◆", "works", "tests its model"),
    "serving": ("✓", "good", "has finished, and keeps its messages until its neighbours have them"),
    "done": ("✓", "good", "has finished"),
    "left": ("−", "gone", "has left"),
    "stopped": ("■", "gone", "was stopped"),
    "failed": ("✗", "bad", "has failed"),
    "restarting": ("↻", "bad", "has crashed, and starts again soon"),
    "no answer": ("?", "bad", "does not answer"),
    "dials out": ("−", "gone", "cannot be asked, as it only dials out"),
    "lost": ("✗", "bad", "is lost, and the others go on without it"),
    "expelled": ("✗", "gone", "was voted out"),
    "returning": ("↻", "begins", "is on its way back"),
}
MOST_NAMED = 3


def sign_of(federation: FederationView, id: str, doubters: Collection[str]) -> Sign:
    """doubters: the neighbours that do not hear it now."""
    doing, waiting = federation.doing(id), federation.peers[id].waiting
    if doing not in (*ENDED, *OUTSIDE):
        if doubters:
            return "?", "bad", f"is not heard by {named(doubters)}"
        if waiting:
            return "=", "waits", f"waits for {named(waiting)}"
    return SIGNS.get(doing) or ("·", "begins", printable(doing))  # another version's peer may be in another state


def named(ids: Collection[str]) -> str:
    first = [*ids][:MOST_NAMED]
    more = len(ids) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
