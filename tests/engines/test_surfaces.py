"""Surface distances: MONAI's against all pairs of border voxels in NumPy, and in a run, over volumes of any size."""

import csv
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extras.surfaces import Surfaces
from launcher.cli import main
from peer.errors import InputError
from peer.learning.tasks import Segmentation
from peer.learning.training.evaluation import EvaluationPass, intervals
from peer.runtime.in_process import federate

if not find_spec("monai"):
    pytest.skip("MONAI is missing: pip install -c constraints.txt 'dfl[monai]'", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore")
"""Of MONAI and what it imports, nothing is ours to mend."""
IGNORED = 9
DISTANCES = ("surface-distance", "hausdorff95", "unmatched")


def border(mask: np.ndarray) -> np.ndarray:
    """Where a voxel of the mask touches, by a face, what is not of it."""
    padded = np.pad(mask, 1)
    places = list(np.argwhere(padded))
    steps = [
        step for axis in range(mask.ndim) for step in (np.eye(mask.ndim, dtype=int)[axis] * sign for sign in (1, -1))
    ]
    return np.array([place for place in places if not all(padded[tuple(place + step)] for step in steps)])


def distances(a: np.ndarray, b: np.ndarray, spacing: np.ndarray) -> tuple[float, float]:
    far = np.linalg.norm((border(a)[:, None] - border(b)[None]) * spacing, axis=2)
    there, back = far.min(1), far.min(0)
    return float(np.concatenate([there, back]).mean()), float(max(np.quantile(there, 0.95), np.quantile(back, 0.95)))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 4),
    classes=st.integers(1, 4),
    batch=st.integers(1, 4),
    ignores=st.booleans(),
    space=st.sampled_from([(5, 4), (3, 4, 3)]),
    anisotropic=st.booleans(),
)
def test_distances_are_those_of_all_pairs(
    seed: int, n: int, classes: int, batch: int, ignores: bool, space: tuple[int, ...], anisotropic: bool
) -> None:
    rng = np.random.default_rng(seed)
    few = rng.random((classes, *[1] * len(space))) < 0.5  # classes that are rare, so that some are missing
    outputs = torch.from_numpy(rng.normal(size=(n, classes, *space)) - 2 * few)
    targets = torch.from_numpy(rng.integers(0, rng.integers(1, classes + 1), size=(n, *space)))
    if ignores:
        targets[torch.from_numpy(rng.random((n, *space)) < 0.2)] = IGNORED
    spacing = (0.5, 2.0, 3.0)[: len(space)] if anisotropic else (1.5,)
    task = Surfaces(name="extras.surfaces:Surfaces", spacing=spacing, ignore=IGNORED if ignores else None)
    plain = Segmentation(name="segmentation", ignore=task.ignore)

    pairs = [*zip(torch.split(outputs, batch), torch.split(targets, batch), strict=True)]
    rows = torch.cat([task.tally(*pair) for pair in pairs]).double()
    found, true, known = outputs.argmax(1).numpy(), targets.numpy(), targets.numpy() != IGNORED
    of_classes = []
    for number in range(1, classes):
        of_pairs, alone = [], 0
        for one, other, kept in zip(found, true, known, strict=True):
            a, b = (one == number) & kept, (other == number) & kept
            if a.any() and b.any():
                of_pairs.append(distances(a, b, np.array(spacing)))
            alone += a.any() != b.any()
        mean = np.mean(of_pairs, axis=0) if of_pairs else np.full(2, np.nan)
        either = alone + len(of_pairs)
        of_classes.append([*mean, alone / either if either else np.nan])
    wanted = np.reshape(of_classes, (-1, 3)).astype(float)

    told = task.of_classes(rows.sum(0))
    for column, name in enumerate(DISTANCES):
        assert told[name].numpy() == pytest.approx(np.array([np.nan, *wanted[:, column]]), nan_ok=True)
    figures = task.judge(rows.numpy())
    assert {*figures} == {figure.name for figure in task.figures}
    for column, name in enumerate(DISTANCES):
        defined = wanted[:, column][~np.isnan(wanted[:, column])]
        assert figures[name] == pytest.approx(defined.mean() if len(defined) else np.nan, nan_ok=True)
    assert {name: figures[name] for name in ("dice", "iou", "pixels")} == plain.results(
        torch.cat([plain.tally(*pair) for pair in pairs]).double().sum(0), n
    )


def test_an_interval_is_over_the_samples() -> None:
    masks = torch.zeros(30, 6, 6, dtype=torch.int64)
    masks[:, 2:4, 2:4] = 1
    task = Surfaces(name="extras.surfaces:Surfaces")
    moved = torch.stack([mask.roll(int(at % 3), 1) for at, mask in enumerate(masks)])
    outputs = torch.nn.functional.one_hot(moved, 2).movedim(-1, 1).float()
    measured = EvaluationPass(task, task.tally(outputs, masks).double().numpy(), np.empty(0), 2, 0.0)
    spans, of_classes = (intervals(of, 30, 500, 1, lambda: None) for of in (measured.if_defined, measured.of_classes))
    for name in ("surface-distance", "hausdorff95"):
        each = [task.judge(row[None])[name] for row in measured.rows]
        means = [np.random.default_rng(at).choice(each, 30).mean() for at in range(2000)]
        assert spans[name] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.08)
        assert (of_classes[0, name], of_classes[1, name]) == (None, spans[name])


def test_spacing_goes_with_the_masks() -> None:
    task = Surfaces(name="extras.surfaces:Surfaces", spacing=(1.0, 2.0))
    with pytest.raises(InputError, match="`spacing` has 2 numbers, and masks have 3 axes"):
        task.tally(torch.zeros(1, 2, 3, 3, 3), torch.zeros(1, 3, 3, 3, dtype=torch.int64))


SCANS = """
import torch
from monai.inferers import sliding_window_inference
from extras.surfaces import Surfaces
class Whole(Surfaces):
    name: str
    evaluation_batch = 1
    def infer(self, forward, inputs):
        return sliding_window_inference(inputs, (4, 8, 8), 4, forward)
class Volumes(torch.utils.data.Dataset):
    def __init__(self, sizes):
        self.sizes = sizes
    def __len__(self):
        return len(self.sizes)
    def __getitem__(self, at):
        shape, drawn = self.sizes[at], torch.Generator().manual_seed(at)
        y = torch.zeros(shape, dtype=torch.int64)
        y[1:3, 1 + at % 3 : 5, 2:6] = 1
        if at % 2:
            y[0, 6:8, 6:8] = 2
        return (y + 0.3 * torch.randn(shape, generator=drawn))[None], y
def scans():
    return Volumes([(4, 8, 8)] * 24), Volumes([(4, 8, 8), (5, 9, 8), (4, 12, 10), (6, 8, 9)])
def collate(samples):
    return tuple(map(torch.stack, zip(*samples)))
def net(shape, classes):
    return torch.nn.Conv3d(1, 8, 3, padding=1), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv3d(8, classes, 1))
"""
SPEC = """
rounds: 4
protocol: {name: fedavg, lr: 0.3, epochs: 5}
task: {name: "surface_scans:Whole", spacing: [3, 1, 1]}
model: "surface_scans:net"
data: {name: "surface_scans:scans", collate: "surface_scans:collate", classes: 3}
final_evaluation: {resamples: 100, predictions: true}
"""


def test_a_run_over_volumes_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "surface_scans.py").write_text(SCANS)
    (tmp_path / "f.yaml").write_text(SPEC)
    monkeypatch.delitem(sys.modules, "surface_scans", raising=False)
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    told = json.loads((tmp_path / "run/peer0/result.json").read_text())
    known, final = told["figures"], told["final"]
    assert known["surface-distance"] <= known["hausdorff95"]
    assert known["unmatched"] is not None
    assert final["intervals"].keys() == known.keys()
    assert final["classes"]["0"] | dict.fromkeys(DISTANCES) == final["classes"]["0"]  # the background has none
    assert final["classes"]["1"]["hausdorff95"] > 0
    low, high = final["class_intervals"]["1"]["surface-distance"]
    assert low <= final["classes"]["1"]["surface-distance"] <= high
    with (tmp_path / "run/peer0/predictions.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 4
    assert {*DISTANCES} <= rows[0].keys()
    where = [str(tmp_path / "run"), "--code", str(tmp_path), "--out"]
    assert main(["summary", *where, str(tmp_path / "summary.json")]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["figures"]["hausdorff95"]["better"] == "down"
    assert summary["per_peer"][0]["final"] == final
    assert main(["report", *where, str(tmp_path / "page.html"), "--csv"]) == 0
    rows = [*csv.DictReader((tmp_path / "page/final.csv").read_text().splitlines())]
    told_of = {(row["class"], row["figure"]) for row in rows if row["value"]}
    assert {("", "surface-distance"), ("1", "surface-distance"), ("1", "hausdorff95")} <= told_of
