"""Liars with keys of their own among real peers, simulated; and that what once did harm does none.

A failure names its federation and seed; `python -m tests.faults.treason FEDERATION SEED` replays it.
"""

import pytest
from torch import Tensor

from faults.treason import SIGNED, check
from peer.network.wire.codec import CodedBlock

SEED = 3
"""The seed for each federation; `make chaos` runs more."""
ONCE_HARMFUL = [
    ("signed six", 2000),  # the only receiver of a member said that this one had lost its disk, and it believed that
    ("signed seven", 1),  # members started again before their first checkpoint let nobody be lost
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name == "signed six")) for name in SIGNED]
)
def test_liars_end_hold_up_and_divide_nobody(name: str) -> None:
    outcome, wrong = check(name, SEED)
    assert not wrong, f"python -m tests.faults.treason {name!r} {SEED}: {wrong} after {outcome.kills}"


def test_what_a_liar_s_codec_never_gave_is_refused_and_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes on the stream and in the place of what others wait for, to some and not to others."""
    refused: list[str] = []
    unpack = CodedBlock.unpack

    def counted(block: CodedBlock, content: memoryview) -> Tensor:
        try:
            return unpack(block, content)
        except ValueError as error:
            refused.append(str(error))
            raise

    monkeypatch.setattr(CodedBlock, "unpack", counted)
    unseen = {"`decode` raises ValueError", "`decode` raises SystemExit", "something else than", "not finite"}
    for seed in range(1, 31):  # which lie a seed tells shifts with each change of the simulation's draws
        assert not check("signed codec", seed)[1], seed
        unseen = {why for why in unseen if not any(why in one for one in refused)}
        if not unseen:
            return
    raise AssertionError(f"no liar gave what was refused with {unseen}: {refused}")


@pytest.mark.parametrize(("name", "seed"), ONCE_HARMFUL)
def test_lies_that_once_did_harm(name: str, seed: int) -> None:
    assert not check(name, seed)[1]
