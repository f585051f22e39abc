"""Solo: nothing leaves, nobody is waited for, and settings that its model protocol does not know are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from federations import federate, resolve

from peer.errors import InputError

QUICK = {"head_epochs": 1, "extractor_epochs": 1}


def test_never_sends_a_byte(tmp_path: Path) -> None:
    run = federate(tmp_path, {"name": "solo", "settings": QUICK}, 3)
    for peer in run.ids:
        result = run.result(peer)
        assert result["bytes_sent"] == result["bytes_received"] == result["tensor_bytes_sent"] == 0
        assert all(line["edges"] == {} and line["sent"] == [] for line in run.audit(peer))


def test_one_peer_holds_all_data(tmp_path: Path) -> None:
    run = federate(tmp_path, {"name": "solo", "settings": QUICK}, 1)
    assert run.result("peer0")["samples"] == 120
    assert not (run.trace("peer0", 1)["after"] == run.trace("peer0", 1)["start"]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"like": "solo"},
        {"like": "fibfel"},
        {"like": "rdfl", "settings": {"gama": 0.5}},
        {"like": "fedavg", "settings": {"epochs": -1}},
        {"like": {"name": "fedavg", "epochs": -1}},
        {"like": {"epochs": 1}},
        {"like": {"name": "fedavg"}, "settings": {"epochs": 1}},
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        resolve(tmp_path, {"name": "solo", **wrong}, 2)


@pytest.mark.parametrize("like", [{}, {"like": "rdfl"}])
def test_a_setting_of_the_compared_protocol_beside_like_is_refused_with_what_to_write(
    tmp_path: Path, like: dict[str, str]
) -> None:
    block = json.dumps({"name": like.get("like", "fibfl"), "gamma": 0.5})
    with pytest.raises(InputError, match=f"`gamma` is of the protocol in `like`; write `like: {block}`$"):
        resolve(tmp_path, {"name": "solo", **like, "gamma": 0.5}, 2)


def test_the_block_of_the_compared_protocol_gives_its_settings(tmp_path: Path) -> None:
    block = {"name": "rdfl", "lr": 0.3, "epochs": 2}
    given = resolve(tmp_path, {"name": "solo", "like": block}, 2)
    assert given == resolve(tmp_path, {"name": "solo", "like": "rdfl", "settings": {"lr": 0.3, "epochs": 2}}, 2)
    assert given.protocol.local() == resolve(tmp_path, block, 3).protocol.local()


def test_a_protocol_of_ones_own_can_be_compared_with(tmp_path: Path) -> None:
    (tmp_path / "alongside.py").write_text(
        "from peer.protocols.rdfl import RDFL\nclass Mine(RDFL):\n    name: str\n    lr: float = 0.7\n"
    )
    spec = resolve(tmp_path, {"name": "solo", "like": {"name": "alongside:Mine", "epochs": 2}}, 2, code=str(tmp_path))
    (phase,) = spec.protocol.local()
    assert (phase.epochs, phase.optimiser.lr) == (2, 0.7)  # type: ignore[union-attr]
    assert "alongside:Mine" in spec.own_code
