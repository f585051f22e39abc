"""A protocol of the user's own, named `module:Name`: the example of the README, and what it cannot do."""

from pathlib import Path

import numpy as np
import pytest
from federations import federate, resolve

from peer.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "my_protocol:RingMedian"


def test_the_example_takes_the_median_and_keeps_the_head(tmp_path: Path) -> None:
    run = federate(
        tmp_path,
        {"name": NAME, "epochs": 2},
        4,
        code=str(EXAMPLES),
        model={"name": "mlp"},
        init="independent",
    )
    traces = [*run.traces(2).values()]
    for i, trace in enumerate(traces):
        three = [traces[i - 1]["before"], trace["before"], traces[(i + 1) % 4]["before"]]
        assert (trace["after"] == np.median(three, axis=0)).all()
    sent = [line for peer in run.ids for record in run.audit(peer) for line in record["sent"]]
    assert {line["vector"] for line in sent} == {"extractor"}
    assert sum(line["head_bytes"] for line in sent) == 0


def test_it_is_about_thirty_lines() -> None:
    lines = (EXAMPLES / "my_protocol.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 32


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ({"name": "my_protocol:Nothing"}, "has no `Nothing`"),
        ({"name": "no_such_module:X"}, "no module `no_such_module`"),
        ({"name": NAME, "epoch": 2}, "did you mean `epochs`"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, protocol: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        resolve(tmp_path, protocol, 3, code=str(EXAMPLES))
