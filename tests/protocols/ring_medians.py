"""What a run must have done that takes the median of three extractors round a ring."""

import numpy as np
from federations import Run


def assert_medians_of_three(run: Run, round: int) -> None:
    """Everyone has the median of its own vector and its two neighbours', bit for bit."""
    traces = [*run.traces(round).values()]
    for i, trace in enumerate(traces):
        three = [traces[i - 1]["before"], trace["before"], traces[(i + 1) % len(traces)]["before"]]
        assert (trace["after"] == np.median(three, axis=0)).all()


def assert_extractors_alone_left(run: Run) -> None:
    sent = [line for peer in run.ids for record in run.audit(peer) for line in record["sent"]]
    assert {line["vector"] for line in sent} == {"extractor"}
    assert sum(line["head_bytes"] for line in sent) == 0
