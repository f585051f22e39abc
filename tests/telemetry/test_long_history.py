"""After years a result is still small, and the rounds in it are the same ones at all peers."""

import json
from pathlib import Path

from peer.telemetry.events import RoundDone
from peer.telemetry.results import MAX_ROUNDS, RESULT, RESULTS, read_result, thinned, write_result

ROUNDS = 20_000


def test_a_result_of_very_many_rounds_stays_below_two_megabytes(tmp_path: Path) -> None:
    accuracy = dict.fromkeys(("matched", "global", "paper"), 0.123456789012345)
    seconds = dict.fromkeys(("train", "communicate", "evaluate"), 0.0171234)
    history = [
        RoundDone(
            round=round,
            accuracy=accuracy,
            figures={"accuracy": 0.987654321},
            loss=0.123456789,
            seconds=seconds,
            bytes_sent=123_456_789_012,
            bytes_received=123_456_789_012,
        )
        for round in range(1, ROUNDS + 1)
    ]
    plain = {
        "id": "peer0",
        "samples": 1,
        "accuracy": accuracy,
        "model_sha256": "0" * 64,
        "bytes_sent": 0,
        "bytes_received": 0,
        "tensor_bytes_sent": 0,
        "sent_to": {},
        "seconds": {},
        "rounds": ROUNDS,
        "ring": ["peer0"],
        "ring_cost": {},
        "history": history,
    }
    write_result(tmp_path, RESULTS.validate_python(plain))
    assert (tmp_path / RESULT).stat().st_size < 2e6
    read = read_result(tmp_path)
    assert read
    rounds = [one.round for one in read.history]
    assert (*rounds[:2], rounds[-1]) == (1, 10, ROUNDS)
    assert len(read.history) <= MAX_ROUNDS + 2
    assert json.loads((tmp_path / RESULT).read_text())["rounds"] == ROUNDS


def test_peers_that_were_away_hold_the_same_rounds_as_the_others() -> None:
    all_rounds = [RoundDone(round=round) for round in range(1, ROUNDS + 1)]
    late = {one.round for one in thinned(all_rounds[4321:])}
    assert late == {one.round for one in thinned(all_rounds) if one.round > 4321}
