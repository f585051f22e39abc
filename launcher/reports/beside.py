"""The same peers alone, beside a federation: the run of `solo` that says whether taking part was worth it.

runs/clinics        the federation
runs/clinics-solo   its peers alone, a run like any other
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.headline import Headline
from launcher.reports import summary_json
from launcher.reports.summary_json import Summary
from launcher.reports.worth import gained, signed
from launcher.run_files import RunFiles
from launcher.written_spec import WrittenSpec
from peer.errors import InputError
from peer.spec.federation import Spec

TOGETHER = frozenset(
    {
        *("wire", "stop_early", "machines", "recording", "on_loss", "on_stop", "absence"),
        *("start_with", "faulty_members", "run", "views"),
    }
)
"""Keys of a spec that say nothing to a peer that trains alone, and that `solo` mostly refuses."""


def beside(directory: Path) -> Path:
    """Where the peers of the run in `directory` train alone."""
    return directory.with_name(f"{directory.name}-solo")


def alone(spec: Spec) -> Spec:
    """The peers of a federation, each for itself: the same data, model and settings, trained as the protocol does.

    Columns that the federation standardises together are standardised by each peer's own. InputError where a peer
    cannot train so alone.
    """
    if spec.protocol.name == "solo":
        raise InputError("the peers of `solo` train alone as it is; leave out `--beside`")
    plain: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    content = {key: value for key, value in plain.items() if key not in TOGETHER}
    content["name"] = f"{spec.name[:95]}-solo"
    content["protocol"] = {"name": "solo", "like": plain["protocol"]}
    if spec.data.standardize:
        content["data"]["standardize"] = "own"
    # Wrong labels are wrong data; whoever sends nothing can misbehave in no other way.
    content["behaviour"] = {id: how for id, how in plain["behaviour"].items() if how["kind"] == "label-flip"}
    try:
        return Spec.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"the peers cannot train alone: {why}; or leave out `--beside`") from None


def judged(summary: Summary, spec: Spec, directory: Path) -> Summary:
    """The summary of the run in `directory`, with what taking part was worth if its peers have trained alone, too."""
    files = RunFiles(beside(directory))
    theirs = summary_json.read(files.summary)
    if theirs is None or spec.protocol.name == "solo" or not _is_of(files, spec):
        return summary
    headline = Headline.of(spec)
    ours, solo = ({one.id: headline.value(one) for one in of.per_peer} for of in (summary, theirs))
    together = {id: value for id, value in ours.items() if value is not None and solo.get(id) is not None}
    figures = {id: value for id, value in solo.items() if id in together and value is not None}
    if not together:
        return summary
    found = gained(together, figures, headline)
    better = sum(gain > 0 for gain in found["gain"].values())
    verdict = (
        f"taking part was worth it for {better} of {len(together)} peers: {headline.words} beside training alone, gain "
        f"{signed(found['mcg'])} on average{'' if headline.figure.better == 'up' else ' (positive is better)'}"
    )
    return replace(summary, worth={**found, "verdict": verdict, "alone": figures})


def _is_of(files: RunFiles, spec: Spec) -> bool:
    """Whether the run there is of these peers alone, with these settings; it may be anybody's."""
    try:
        return not WrittenSpec.read(files.federation).differing(WrittenSpec.of(alone(spec), files.federation))
    except InputError:
        return False
