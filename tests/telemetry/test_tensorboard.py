"""What TensorBoard reads is what the rounds came to, each once."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from peer.errors import InputError
from peer.telemetry.events import Resumed, RoundDone
from peer.telemetry.telemetry import TensorBoard


def curve(directory: Path, tag: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(directory))
    read.Reload()
    return [(one.step, one.value) for one in read.Scalars(tag)]


def write(board: TensorBoard, first: int, last: int, loss: float) -> None:
    for number in range(first, last + 1):
        seconds = {"train": 1.0}
        board.on_event(RoundDone(round=number, loss=loss, accuracy={"matched": 0.5, "paper": None}, seconds=seconds))


def test_a_peer_that_is_started_again_doubles_nothing(tmp_path: Path) -> None:
    killed = TensorBoard(tmp_path)
    write(killed, 1, 4, loss=0.5)  # never closed
    again = TensorBoard(tmp_path)
    again.on_event(Resumed(round=2))
    write(again, 3, 5, loss=0.25)
    again.close()
    assert curve(tmp_path, "loss/train") == [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25), (5, 0.25)]
    killed.close()


def test_rounds_that_are_void_are_replaced(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    write(board, 1, 4, loss=0.5)
    write(board, 3, 3, loss=0.25)
    board.close()
    assert curve(tmp_path, "loss/train") == [(1, 0.5), (2, 0.5), (3, 0.25)]


def test_what_is_written_of_a_round(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.on_event(
        RoundDone(
            round=1,
            time=100.0,
            accuracy={"matched": 0.5, "paper": None},
            figures={"f1": 0.25},
            validation={"f1": 0.125},
            loss=2.0,
            seconds={"train": 1.0},
            bytes_sent=7,
            notes={"gamma": 0.5, "weights": [1.0, 2.0]},
        )
    )
    board.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == [
        *("accuracy/matched", "bytes/received", "bytes/sent", "figures/f1", "loss/train", "notes/gamma"),
        *("seconds/train", "validation/f1"),
    ]
    (one,) = read.Scalars("accuracy/matched")
    assert (one.wall_time, one.step, one.value) == (100.0, 1, 0.5)


def test_nothing_is_created_before_the_first_round(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tensorboard")
    board.on_event(Resumed(round=2))
    board.close()
    assert not (tmp_path / "tensorboard").exists()


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"`tensorboard: true` needs .*'dfl\[tensorboard\]'"):
        TensorBoard(tmp_path)
