"""Which losses the rest of a run can bear."""

from pathlib import Path

import pytest

from launcher.supervision.supervisor import LossTolerance
from peer.spec.loading import load_spec
from peer.views.view import View

FOUR = View(0, ("a", "b", "c", "d"), first=0)
THREE = View(1, ("a", "b", "d"), first=5)


@pytest.mark.parametrize(
    ("failed", "view", "goes_on"),
    [
        ("", FOUR, True),
        ("c", FOUR, True),
        ("cd", FOUR, True),  # half of them with the first
        ("ab", FOUR, False),
        ("bcd", FOUR, False),
        ("c", THREE, True),
        ("cd", THREE, True),
        ("cab", THREE, False),
        ("cad", View(2, ("a", "b"), first=7), False),
    ],
)
def test_the_rest_is_a_quorum_of_the_view_and_enough_for_the_protocol(failed: str, view: View, goes_on: bool) -> None:
    assert LossTolerance(at_least=2).allows(failed, view) is goes_on


def test_only_with_bypass_anybody_can_be_done_without(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("name: small\nrounds: 3\nprotocol: {name: fibfl}\ndata: {name: digits}\n")
    assert not LossTolerance.from_spec(load_spec(file, peers=4), certificates=False).allows("d", FOUR)
    file.write_text(file.read_text() + "on_loss: bypass\n")
    assert LossTolerance.from_spec(load_spec(file, peers=4), certificates=False).allows("d", FOUR)
