"""What a peer does in a run whose views were recorded: those of which rounds count, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peer.views.spans import spans
from peer.views.view import View


@dataclass(frozen=True)
class Scene:
    """One peer's part in one view."""

    number: int
    """How many views of the script are before it."""
    view: View
    """As recorded, but planned: nobody plays rounds that are void."""
    last: int
    """The view's last round."""
    brings: int | None
    """The round after which the private state stands with which the peer is taken in there, or -1; None: it is not."""
    brings_later: int
    """The least such round of its later views; -1 if there is none."""
    stay: frozenset[str]
    """Who is in a later view."""
    met_again: frozenset[str]
    """Who is in a later view of this peer's."""
    ends: bool
    """Whether the peer is in no later one."""


def script(id: str, views: Sequence[View], rounds: int) -> list[Scene]:
    """A peer's scenes, by all views of a run of so many rounds."""
    whole = spans(views, rounds)
    scenes = list[Scene]()
    for number, span in enumerate(whole):
        if id not in span.view.members:
            continue
        later = [one.view for one in whole[number + 1 :]]
        own = [dict(view.entrants)[id] for view in later if id in dict(view.entrants)]
        scenes.append(
            Scene(
                number,
                replace(span.view, planned=number > 0),
                span.last,
                dict(span.view.entrants).get(id),
                min((brought for brought in own if brought >= 0), default=-1),
                frozenset(member for view in later for member in view.members),
                frozenset(member for view in later if id in view.members for member in view.members),
                not any(id in view.members for view in later),
            )
        )
    return scenes
