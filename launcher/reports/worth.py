"""What taking part was worth: each peer's figure beside the one that it reaches alone (MCG and CGS: CYCle's).

runs/clinics        the federation
runs/clinics-solo   the same peers alone (`--beside solo`), a run of `solo` like any other
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.headline import Headline
from launcher.recorded_spec import RecordedSpec
from launcher.reports import summary_json
from launcher.reports.summary_json import Gains, Summary, Worth
from launcher.run_files import RunFiles
from peer.errors import InputError
from peer.learning.training import metrics
from peer.spec.federation import Spec
from peer.text import number

VERDICTS = (("worth it", 1), ("not worth it", -1), ("no difference", 0))
"""The verdicts by the sign of the gain."""


def worth_lines(found: Worth) -> list[str]:
    """The gains for people: a line for all peers, and one for each verdict with its peers."""
    told = [found["verdict"]]
    for words, sign in VERDICTS:
        named = [
            f"{id} {signed(gain)} ({number(found['alone'][id])} alone)"
            for id, gain in found["gain"].items()
            if (gain > 0) - (gain < 0) == sign
        ]
        told += [f"  {words}: {', '.join(named)}"] if named else []
    return told


def collaboration_gains(together: Mapping[str, float], solo: Mapping[str, float], headline: Headline) -> Gains:
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


FEDERATION_KEYS = {
    *("wire", "stop_early", "machines", "recording", "on_loss", "on_stop", "absence"),
    *("start_with", "faulty_members", "run", "views", "rewinds"),
}
"""Keys of a spec that say nothing to a peer that trains alone, and that `solo` mostly refuses."""


def solo_directory(directory: Path) -> Path:
    """The directory in which the peers of the run in `directory` train alone."""
    return directory.with_name(f"{directory.name}-solo")


def solo_spec(spec: Spec) -> Spec:
    """The peers of a federation, each for itself: the same data, model and settings, trained as the protocol does.

    Columns that the federation standardises together are standardised by each peer's own. InputError where a peer
    cannot train so alone.
    """
    if spec.protocol.name == "solo":
        raise InputError("the peers of `solo` train alone as it is; leave out `--beside`")
    plain: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    content = {key: value for key, value in plain.items() if key not in FEDERATION_KEYS}
    content["name"] = f"{spec.name[:95]}-solo"
    content["protocol"] = {"name": "solo", "like": plain["protocol"]}
    content["data"] = standardised_alone(content["data"])
    # Wrong labels are wrong data; a peer that sends nothing can misbehave in no other way.
    content["behaviour"] = {id: how for id, how in plain["behaviour"].items() if how["kind"] == "label-flip"}
    try:
        return Spec.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"the peers cannot train alone: {why}; or leave out `--beside`") from None


def standardised_alone(data: Mapping[str, Any]) -> dict[str, Any]:
    """A `data` block as peers alone have it: what all standardise together, each then does by its own samples."""
    return {**data, "standardize": "own"} if data.get("standardize") == "federation" else {**data}


def with_worth(summary: Summary, spec: Spec, directory: Path) -> Summary:
    """The summary of the run in `directory`, with what taking part was worth if its peers have trained alone, too."""
    files = RunFiles(solo_directory(directory))
    theirs = summary_json.read(files.summary)
    if theirs is None or spec.protocol.name == "solo" or not _is_of(files, spec):
        return summary
    headline = Headline.from_spec(spec)
    ours, solo = ({one.id: headline.value(one) for one in of.per_peer} for of in (summary, theirs))
    together = {id: value for id, value in ours.items() if value is not None and solo.get(id) is not None}
    figures = {id: value for id, value in solo.items() if id in together and value is not None}
    if not together:
        return summary
    found = collaboration_gains(together, figures, headline)
    better = sum(gain > 0 for gain in found["gain"].values())
    verdict = (
        f"taking part was worth it for {better} of {len(together)} peers: {headline.words} beside training alone, gain "
        f"{signed(found['mcg'])} on average{'' if headline.figure.better == 'up' else ' (positive is better)'}"
    )
    return replace(summary, worth={**found, "verdict": verdict, "alone": figures})


def _is_of(files: RunFiles, spec: Spec) -> bool:
    """Whether the run there is of these peers alone, with these settings; it may be of any other run."""
    try:
        alone = RecordedSpec.from_spec(solo_spec(spec), files.federation)
        return not RecordedSpec.read(files.federation).differing(alone)
    except InputError:
        return False
