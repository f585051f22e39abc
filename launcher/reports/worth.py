"""What taking part was worth: each peer's figure beside the one that it has alone (MCG and CGS: CYCle's)."""

from collections.abc import Mapping

from launcher.headline import Headline
from launcher.reports.summary_json import Gains, Worth
from peer.learning.training import metrics
from peer.text import number

VERDICTS = (("worth it", 1), ("not worth it", -1), ("no difference", 0))
"""By the sign of the gain."""


def worth(found: Worth) -> list[str]:
    """For a person: a line of all peers, and one of each verdict with its peers."""
    told = [found["verdict"]]
    for words, sign in VERDICTS:
        named = [
            f"{id} {signed(gain)} ({number(found['alone'][id])} alone)"
            for id, gain in found["gain"].items()
            if (gain > 0) - (gain < 0) == sign
        ]
        told += [f"  {words}: {', '.join(named)}"] if named else []
    return told


def gained(together: Mapping[str, float], solo: Mapping[str, float], headline: Headline) -> Gains:
    """What collaborating gained by the headline figure, by id: positive is better, also where less is better; None
    where a figure is undefined."""
    sign = 1 if headline.figure.better == "up" else -1
    ours, theirs = [sign * value for value in together.values()], [sign * solo[id] for id in together]
    return {
        "mcg": metrics.mcg(ours, theirs),
        "cgs": metrics.cgs(ours, theirs),
        "pearson": metrics.pearson(ours, theirs),
        "gain": {id: sign * (together[id] - solo[id]) for id in together},
    }


def signed(value: float) -> str:
    return number(value) if value < 0 else f"+{number(value)}"
