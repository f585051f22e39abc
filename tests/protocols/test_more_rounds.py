"""A finished run is given more rounds: it ends in the bits of one that had them from the start, or is refused."""

from pathlib import Path

import pytest
from federations import federate

from peer.errors import InputError

QUICK = {"head_epochs": 1, "extractor_epochs": 1}


@pytest.mark.parametrize("protocol", [{"name": "fibfl", **QUICK}, {"name": "fedavg", "epochs": 1}])
def test_the_rounds_may_come_later(protocol: dict[str, object], tmp_path: Path) -> None:
    whole = federate(tmp_path / "whole", protocol, 3, rounds=4)
    federate(tmp_path / "run", protocol, 3, rounds=2)
    longer = federate(tmp_path / "run", protocol, 3, rounds=4)
    assert longer.models() == whole.models()
    assert [one["round"] for one in longer.result("peer0")["history"]] == [1, 2, 3, 4]


def test_not_where_the_course_depends_on_their_number(tmp_path: Path) -> None:
    federate(tmp_path, {"name": "fibfl++", **QUICK}, 3, rounds=2)
    with pytest.raises(InputError, match=r"`fibfl\+\+` cannot be given more rounds: "):
        federate(tmp_path, {"name": "fibfl++", **QUICK}, 3, rounds=4)


def test_never_fewer(tmp_path: Path) -> None:
    federate(tmp_path, {"name": "fibfl", **QUICK}, 3, rounds=2)
    with pytest.raises(InputError, match="it has 2 rounds, not 1: a run can be given more rounds, not fewer"):
        federate(tmp_path, {"name": "fibfl", **QUICK}, 3, rounds=1)
