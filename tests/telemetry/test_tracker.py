"""A tracker of the user's: what may be one, and that it is told of events."""

import sys
from pathlib import Path

import pytest

from peer.errors import InputError
from peer.telemetry.events import SCHEMA, Resumed, RoundDone, Started
from peer.telemetry.telemetry import Tracker, load_tracker

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CODE = """
heard = []
made = []

class Kept:
    def __init__(self):
        made.append(self)
    def __call__(self, event):
        heard.append(event)

class Mute:
    pass

text = "x"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"tracked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_class_is_made_once_when_the_first_event_comes(module: str) -> None:
    tracker = Tracker(f"{module}:Kept")
    assert not sys.modules[module].made
    for round in (1, 2):
        tracker.on_event(Resumed(round=round))
    assert len(sys.modules[module].made) == 1
    assert [event.round for event in sys.modules[module].heard] == [1, 2]


@pytest.mark.parametrize("name", ["Mute", "text"])
def test_what_cannot_be_called_is_refused(module: str, name: str) -> None:
    with pytest.raises(
        InputError, match=f"`tracker: {module}:{name}` cannot be called with an event; write a function"
    ):
        load_tracker(f"{module}:{name}")


def test_what_is_not_there_is_refused(module: str) -> None:
    with pytest.raises(InputError, match="has no `none`"):
        load_tracker(f"{module}:none")


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    tracker = Tracker("tracker:Table")
    tracker.on_event(Started(schema=SCHEMA, version="1", id="peer0", federation="f", protocol="fibfl", rounds=2))
    tracker.on_event(RoundDone(round=1, loss=0.5, accuracy={"matched": 0.25}))
    tracker.on_event(RoundDone(round=2, loss=None))
    assert (tmp_path / "f-peer0.csv").read_text() == "1,0.5,0.25\n2,None,None\n"
