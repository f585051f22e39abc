"""`class_names` of data that have none of their own: one for each class or label, or one sentence about it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import source

from launcher.cli import main
from peer.errors import InputError
from peer.learning.tasks import Classification, Multilabel, Regression, Segmentation, Task

MULTILABEL, SEGMENTATION = Multilabel(name="multilabel"), Segmentation(name="segmentation")


def arrays(folder: Path, task: Task) -> Path:
    """40 samples of three classes, or labels."""
    rng = np.random.default_rng(0)
    x = rng.random((40, 1, 4, 4) if task is SEGMENTATION else (40, 3))
    y = {MULTILABEL: rng.integers(2, size=(40, 3)), SEGMENTATION: rng.integers(3, size=(40, 4, 4))}
    np.savez(folder / "a.npz", x=x, y=y.get(task, rng.integers(3, size=40)))
    return folder / "a.npz"


@pytest.mark.parametrize("task", [Classification(), MULTILABEL, SEGMENTATION], ids=lambda task: task.name)
def test_they_name_classes_and_labels(tmp_path: Path, task: Task) -> None:
    made = source("npz", path=arrays(tmp_path, task), class_names=["lung", "liver", "spleen"]).load(task)
    assert (made.classes, made.names.classes) == (3, ("lung", "liver", "spleen"))
    assert source("npz", path=tmp_path / "a.npz").load(task).names.classes == ()


def test_they_say_how_many_classes_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = arrays(tmp_path, Classification())
    assert source("npz", path=path, class_names=[*"abcd"]).load().classes == 4
    monkeypatch.setattr("test_class_names.GIVEN", [np.load(path)[name] for name in "xy"])
    assert source("test_class_names:given", class_names=[*"abcd"]).load().classes == 4
    images = torch.utils.data.TensorDataset(torch.zeros(9, 1, 4, 4), torch.zeros(9, 4, 4, dtype=torch.int64))
    monkeypatch.setattr("test_class_names.GIVEN", images)
    made = source("test_class_names:given", class_names=[*"abcd"]).load(SEGMENTATION)
    assert (made.classes, made.names.classes) == (4, (*"abcd",))


GIVEN: Any = None


def given() -> Any:
    return GIVEN


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        (Classification(), {"class_names": ["a", "b"]}, "label 2 does not fit 2 classes, numbered from 0"),
        (Classification(), {"class_names": [*"aba"]}, "are a, b, a; give a different one for each of 3 classes"),
        (Classification(), {"class_names": [*"abc"], "classes": 4}, "are a, b, c; give a different"),
        (MULTILABEL, {"class_names": ["a", "b"]}, "holds 3 numbers, not 2; mend `classes` or `class_names`"),
        (SEGMENTATION, {"class_names": ["liver", "spleen"]}, "class 2 does not fit 2 classes, numbered from 0"),
        (Regression(name="regression"), {"class_names": ["a", "b"]}, "a target holds 1 numbers, not 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(tmp_path: Path, task: Task, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        source("npz", path=arrays(tmp_path, task), **settings).load(task)
    assert said in str(caught.value)


def test_peers_that_name_them_differently_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays(tmp_path, Classification())
    ring = "".join(
        f"  - {{id: p{at}, address: '127.0.0.1:{7700 + at}', "
        f"data: {{name: npz, path: a.npz, class_names: [{names}]}}}}\n"
        for at, names in enumerate(["lung, liver, spleen", "liver, lung, spleen", "lung, liver, spleen"])
    )
    (tmp_path / "f.yaml").write_text(f"rounds: 1\nprotocol: fedavg\nring:\n{ring}")
    assert main(["check", str(tmp_path / "f.yaml")]) == 2
    said = "the data of p1 has classes (liver, lung, spleen), and that of p0 classes (lung, liver, spleen); make"
    assert said in capsys.readouterr().err
