"""A run in which peers were lost, in words: where, whose data are missing, and what the models lost by it."""

from launcher.headline import Headline
from launcher.reports.summary_json import Summary
from launcher.views import Views
from peer.spec.federation import Spec
from peer.text import number, plural
from peer.views.view import View


def changes(summary: Summary, spec: Spec) -> list[str]:
    """A line each; none of a run whose members stayed the same."""
    if not summary.views:
        return []
    views = Views(spec.ids, summary.rounds, tuple(View.from_json(dict(view)) for view in summary.views))
    told = [verdict(views), *whose_data(summary), *course(summary, Headline.of(spec), views)]
    return [told[0], *(f"  {line}" for line in told[1:])]


def verdict(views: Views) -> str:
    """Whether the result is that of a run in which nobody was lost."""
    if views.exact:
        return "exact: after a change of view all peers played the rounds again that had become void"
    changed = views.changes()
    rounds = [str(round) for round, _ in changed]
    listed = f"rounds {', '.join(rounds[:-1])} and {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    return f"with changes of view at {listed}: {'; '.join(words for _, words in changed)}"


def whose_data(summary: Summary) -> list[str]:
    """Of whom, and in which rounds, no data took part."""
    told = []
    for id, absent in summary.absences.items():
        rounds = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in absent)
        outside = "; it was not taken in again, and is in no figure" if id in summary.outside else ""
        told.append(f"without the data of {id}: rounds {rounds}{outside}")
    return told


def course(summary: Summary, headline: Headline, views: Views) -> list[str]:
    """The mean figure of those who have finished, at the end of each view that changed who took part."""
    known = {int(one["round"] or 0): headline.of_means(one) for one in summary.history}
    told = []
    for span in views.spans:
        if within := [round for round in known if round in span.rounds]:
            last = max(within)
            told.append(f"{number(known[last])} after round {last} with {plural(len(span.view.members), 'peer')}")
    return [f"mean {headline.words} of those who finished: {', '.join(told)}"] if len(told) > 1 else []
