"""How good the models were after each round, how evenly, and what each peer did for it."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from launcher.headline import Headline, mean
from launcher.page.chronicle import Chronicle
from launcher.page.document import Row
from launcher.reports.summary import TESTS
from launcher.views import Views
from peer.learning.training import metrics

ACTIVITIES = ("train", "communicate", "evaluate")


def rounds(
    chronicles: Mapping[str, Chronicle], views: Views, judged: Collection[str], headline: Headline
) -> Iterator[Row]:
    """A row for every round after which all its members among `judged` were evaluated, as in summary.json."""
    evaluated = {
        id: {number: one for number, one in chronicle.history.items() if one.evaluated}
        for id, chronicle in chronicles.items()
        if id in judged
    }
    for number in sorted(set().union(*evaluated.values())):
        members = [evaluated[id] for id in views.members(number) if id in evaluated]
        if members and all(number in one for one in members):
            told = [one[number] for one in members]
            yield {
                "round": number,
                **spread([value for one in told if (value := headline.value(one)) is not None], headline),
                "train_loss": mean(one.loss for one in told),
                "test_loss": mean(one.test_loss for one in told),
                "peers": len(told),
            }


def spread(values: list[float], headline: Headline) -> Row:
    """The mean, the middle half, the extremes and how uneven they are; None of what is not known."""
    if not values:
        return dict.fromkeys(("mean", "lower", "upper", "worst", "best", "gini", "deviation"))
    lower, upper = np.quantile(values, [0.25, 0.75])
    worst = headline.figure.worst(values)
    return {
        "mean": mean(values),
        "lower": float(lower),
        "upper": float(upper),
        "worst": worst,
        "best": max(values) if worst == min(values) else min(values),
        "gini": metrics.gini(values) if headline.test else None,
        "deviation": float(np.std(values)),
    }


def peer_rounds(chronicles: Mapping[str, Chronicle], headline: Headline) -> Iterator[Row]:
    """A row a peer and round. Seconds are of the round, bytes of all rounds so far.

    A figure of the task is in a column of its name, unless that is taken. stretch: counts up where rounds of a peer
    are missing, so that no line is drawn across them.
    """
    for id, chronicle in chronicles.items():
        stretch, before = 0, 0
        for number, done in sorted(chronicle.history.items()):
            stretch, before = stretch + (number > before + 1), number
            yield {
                **done.figures,
                **{name: done.accuracy.get(name) for name in (*TESTS, "local") if name in done.accuracy},
                "peer": id,
                "round": number,
                "stretch": stretch,
                "value": headline.value(done) if done.evaluated else None,
                "train_loss": done.loss,
                "test_loss": done.test_loss,
                **{f"{name}_seconds": done.seconds.get(name, 0.0) for name in ACTIVITIES},
                "bytes_sent": done.bytes_sent,
                "bytes_received": done.bytes_received,
            }
