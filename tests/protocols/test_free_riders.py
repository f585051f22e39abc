"""Methods that keep a reputation of each peer: whoever gives nothing, or harm, ends with the lowest.

A method that notes its reputations is one more line of METHODS.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from federations import Run, federate

FREE_RIDER = "peer3"
BEHAVIOURS = {
    "noise": {"kind": "noise", "scale": 1.0},
    "sign-flip": {"kind": "sign-flip"},
    "label-flip": {"kind": "label-flip", "rate": 1.0},
}


class Method(NamedTuple):
    """A protocol with a reputation."""

    settings: dict[str, Any]
    """The protocol's own."""
    reputation: str
    """The name of a note: a number for each member, in the order of the spec; the higher, the better."""
    behaviours: tuple[str, ...] = tuple(BEHAVIOURS)
    """The behaviours that it recognises."""
    validation: float = 0.0
    each: bool = True
    """Every honest peer by itself thinks least of it; otherwise they do on average."""


METHODS = {
    "cycle-gossip": Method({"every": 1, "lr": 0.05}, "opinions"),
    "cgsv": Method({"batch_size": 16}, "reputation"),
    "rffl": Method({"batch_size": 16, "gamma": 0.1}, "reputation"),
    # It counts how many public samples are right: within three rounds wrong labels do not stand out.
    "cffl": Method({"batch_size": 16}, "reputation", ("noise", "sign-flip"), validation=0.2),
    # It asks which way a model pulls: one of noise pulls nowhere, and counts half. Each judges by a few samples of
    # its own, and two of four are wrong; also with twice the samples or rounds, a tenth of the rate, or `lam: 0`.
    "cycle-pdl": Method(
        {"batch_size": 32, "reputation_every": 1, "lam": 1.0}, "reputation", ("label-flip",), each=False
    ),
}
CASES = [(name, behaviour) for name, method in METHODS.items() for behaviour in method.behaviours]


@pytest.mark.parametrize(("name", "behaviour"), CASES)
def test_a_free_rider_ends_with_the_lowest_reputation(tmp_path: Path, name: str, behaviour: str) -> None:
    method = METHODS[name]
    run = federate(
        tmp_path,
        {"name": name, **method.settings},
        5,
        rounds=3,
        trace=False,
        data={"name": "digits", "limit": 400, "validation": method.validation},
        behaviour={FREE_RIDER: BEHAVIOURS[behaviour]},
    )
    honest = [peer for peer in run.ids if peer != FREE_RIDER]
    for peer in honest if method.each else ():
        told = {other: opinion(run, [peer], other, method) for other in run.ids if other != peer}
        assert min(told, key=lambda other: told[other]) == FREE_RIDER, (peer, told)
    told = {peer: opinion(run, [other for other in honest if other != peer], peer, method) for peer in run.ids}
    assert min(told, key=lambda peer: told[peer]) == FREE_RIDER, told


def opinion(run: Run, others: list[str], of: str, method: Method) -> float:
    """What these think of a peer in the end, on average."""
    notes = [run.result(peer)["history"][-1]["notes"][method.reputation] for peer in others]
    return float(np.mean([note[run.ids.index(of)] for note in notes]))
