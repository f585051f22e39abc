"""`final_evaluation`: intervals, figures of each class and predictions, against scikit-learn and independent NumPy."""

import csv
import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from report_pages import document
from sklearn import metrics as sklearn

from launcher.cli import main
from peer import load_model
from peer.learning.randomness import derive
from peer.learning.tasks import Classification, Regression, Segmentation
from peer.learning.training.evaluation import EvaluationPass, intervals
from peer.runtime.in_process import federate
from peer.telemetry.results import read_result

SPEC = """
rounds: 2
protocol: {name: fedavg, lr: 0.1, epochs: 1}
data: {name: digits, limit: 200}
task: {name: classification, judged_by: [auroc, sensitivity]}
final_evaluation: {resamples: 200, predictions: true}
"""


def go_on() -> None:
    """Nobody has asked for an end."""


def test_an_interval_is_that_of_the_resampled_figure() -> None:
    rng = np.random.default_rng(1)
    hits = (rng.random(400) < 0.8).astype(float)[:, None]
    measured = EvaluationPass(Classification(), hits, np.zeros(400, int), 2, 0.0)
    found = intervals(measured.if_defined, 400, 2000, 3, go_on)["accuracy"]
    assert found is not None
    other = np.random.default_rng(2)
    means = [other.choice(hits[:, 0], 400).mean() for _ in range(2000)]
    assert found == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.008)


def test_a_figure_that_is_rarely_defined_has_no_interval() -> None:
    task = Classification(judged_by=("sensitivity",))
    rows = np.array([[1.0, 0, 0, 1, 0]] * 40)  # nobody of class 1: what share of it is found is not known
    measured = EvaluationPass(task, rows, np.zeros(40, int), 2, 0.0)
    found = intervals(measured.if_defined, 40, 100, 0, go_on)
    assert found == {"sensitivity": None, "accuracy": (1.0, 1.0)}


def test_an_interval_is_the_same_each_time_and_of_each_task() -> None:
    rows = np.random.default_rng(0).random((50, 4))
    measured = EvaluationPass(Regression(name="regression"), rows, np.empty(0), 1, 0.0)
    found = intervals(measured.if_defined, 50, 100, 5, go_on)
    assert found == intervals(measured.if_defined, 50, 100, 5, go_on)
    assert set(found) == {"rmse", "mae", "r2"}


def table(path: Path) -> dict[str, np.ndarray]:
    with path.open() as file:
        heads, *rows = csv.reader(file)
    return {head: np.array([float(row[at]) for row in rows]) for at, head in enumerate(heads)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("final")
    (folder / "f.yaml").write_text(SPEC)
    federate(folder / "f.yaml", folder / "run", peers=2)
    return folder / "run"


def test_the_figures_can_be_made_again_from_the_predictions(run: Path) -> None:
    told = json.loads((run / "peer0" / "result.json").read_text())
    known = table(run / "peer0" / "predictions.csv")
    target, answer = known["target"], known["answer"]
    shares = np.stack([known[f"output {one}"] for one in range(10)], 1)
    assert [*known["sample"]] == [*range(len(target))]
    assert shares.argmax(1) == pytest.approx(answer)
    assert told["figures"]["accuracy"] == pytest.approx(sklearn.accuracy_score(target, answer))
    assert told["figures"]["auroc"] == pytest.approx(sklearn.roc_auc_score(target, shares, multi_class="ovr"))
    assert told["final"]["confusion"] == sklearn.confusion_matrix(target, answer).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that nobody says
        precision, recall, f1, _ = sklearn.precision_recall_fscore_support(target, answer, zero_division=0)
    for number, one in enumerate(told["final"]["classes"].values()):
        assert one["sensitivity"] == pytest.approx(recall[number])
        assert (one["precision"] or 0) == pytest.approx(precision[number])
        assert one["f1"] == pytest.approx(f1[number])
        assert one["auroc"] == pytest.approx(sklearn.roc_auc_score(target == number, shares[:, number]))
    for name, (low, high) in told["final"]["intervals"].items():
        assert low <= told["figures"][name] <= high


def test_each_class_has_the_intervals_of_the_same_resamples(run: Path) -> None:
    final = json.loads((run / "peer0" / "result.json").read_text())["final"]
    known = table(run / "peer0" / "predictions.csv")
    true, said, scores = known["target"] == 0, known["answer"] == 0, known["output 0"]
    rng = np.random.default_rng(derive(42, "intervals"))
    drawn = [rng.integers(len(true), size=len(true)) for _ in range(200)]
    figures = {
        "sensitivity": lambda at: sklearn.recall_score(true[at], said[at]),
        "specificity": lambda at: sklearn.recall_score(~true[at], ~said[at]),
        "precision": lambda at: sklearn.precision_score(true[at], said[at], zero_division=np.nan),
        "f1": lambda at: sklearn.f1_score(true[at], said[at]),
        "auroc": lambda at: sklearn.roc_auc_score(true[at], scores[at]),
        "average-precision": lambda at: sklearn.average_precision_score(true[at], scores[at]),
    }
    assert [*final["class_intervals"]] == [*final["classes"]] == [*"0123456789"]
    assert final["class_intervals"]["0"].keys() == figures.keys()
    for name, figure in figures.items():
        expected = np.nanpercentile([figure(at) for at in drawn], [2.5, 97.5])
        assert final["class_intervals"]["0"][name] == pytest.approx(expected), name


def test_a_regression_has_each_samples_own_figures(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import numpy as np\n"
        "def numbers():\n"
        "    x = np.random.default_rng(0).normal(size=(60, 3)).astype('float32')\n"
        "    return x, x @ np.array([1, -2, 0.5], 'float32')\n"
    )
    spec = "rounds: 1\nprotocol: {name: fedavg, lr: 0.01}\ntask: regression\ndata: {name: 'two:numbers'}\n"
    (tmp_path / "f.yaml").write_text(spec + "final_evaluation: {predictions: true}\n")
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    told = json.loads((tmp_path / "run/peer1/result.json").read_text())
    known = table(tmp_path / "run/peer1/predictions.csv")
    assert [*known] == ["sample", "target", "answer", "output", "rmse", "mae", "r2"]
    assert known["mae"] == pytest.approx(np.abs(known["target"] - known["answer"]), abs=1e-5)
    assert told["figures"]["mae"] == pytest.approx(known["mae"].mean(), abs=1e-5)
    assert "classes" not in {name for name, value in told["final"].items() if value}


ORGANS = """
import numpy as np
import torch
def net(shape, classes):
    return torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv2d(8, classes, 1))
class Named(torch.nn.Sequential):
    class_names = ["small", "large"]
def named(shape, classes):
    return Named(torch.nn.Linear(4, classes))
def sizes():
    x = np.random.default_rng(0).normal(size=(90, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype(int)
def organs():
    rng = np.random.default_rng(0)
    y = np.repeat(rng.integers(0, 3, (60, 4, 4)), 2, 1).repeat(2, 2)
    y[y == 2] *= rng.random(60).repeat((y == 2).sum((1, 2))) < 0.7
    return (y + rng.normal(0, 0.2, y.shape)).astype("float32")[:, None], y
def flags():
    x = np.random.default_rng(0).normal(size=(90, 4)).astype("float32")
    return x, np.stack([x[:, 0] > 0, x[:, 1] > 1, x[:, 2] > 9], 1).astype(int)
"""


@pytest.fixture(scope="module")
def organs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("organs")
    (folder / "final_organs.py").write_text(ORGANS)
    (folder / "f.yaml").write_text(
        "rounds: 2\nprotocol: {name: fedavg, lr: 0.2, epochs: 3}\ntask: segmentation\nmodel: 'final_organs:net'\n"
        "data: {name: 'final_organs:organs', class_names: [nothing, liver, spleen, lung]}\n"
        "final_evaluation: {resamples: 400}\n"
    )
    federate(folder / "f.yaml", folder / "run", peers=2)
    return folder / "run"


def test_each_organ_has_its_figures_and_intervals(organs: Path) -> None:
    told = json.loads((organs / "peer0" / "result.json").read_text())
    classes, spans = told["final"]["classes"], told["final"]["class_intervals"]
    assert [*classes] == [*spans] == ["nothing", "liver", "spleen", "lung"]
    assert classes["lung"] == spans["lung"] == {"dice": None, "iou": None}  # it neither occurs nor is found
    for name in ("dice", "iou"):
        known = [classes[one][name] for one in ("nothing", "liver", "spleen")]
        assert told["figures"][name] == pytest.approx(np.mean(known))
        assert all(spans[one][name][0] < classes[one][name] < spans[one][name][1] for one in [*classes][:3])
    assert told["final"]["confusion"] == []


def test_an_interval_of_a_class_is_that_of_the_resampled_sums() -> None:
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 50, (200, 2))
    both = np.minimum(rng.integers(0, 50, 200), sizes.min(1))
    none = np.zeros((200, 1))
    rows = np.concatenate([none, none, none, both[:, None], none, sizes[:, :1], none, sizes[:, 1:]], 1)
    measured = EvaluationPass(Segmentation(name="segmentation"), rows, np.empty(0), 2, 0.0)
    found = intervals(measured.of_classes, 200, 2000, 3, go_on)
    drawn = [np.random.default_rng(at).integers(200, size=200) for at in range(2000)]
    dice = [2 * both[some].sum() / sizes[some].sum() for some in drawn]
    assert found[0, "dice"] is None
    assert found[1, "dice"] == pytest.approx(np.quantile(dice, [0.025, 0.975]), abs=0.008)


def test_each_label_has_its_figures(tmp_path: Path) -> None:
    (tmp_path / "final_flags.py").write_text(ORGANS)
    spec = "rounds: 3\nprotocol: {name: fedavg, lr: 0.5}\ntask: multilabel\n"
    spec += "data: {name: 'final_flags:flags', class_names: [fever, cough, rash]}\n"
    (tmp_path / "f.yaml").write_text(spec + "final_evaluation: {predictions: true, resamples: 100}\n")
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    final = json.loads((tmp_path / "run/peer0/result.json").read_text())["final"]
    known = table(tmp_path / "run/peer0/predictions.csv")
    assert [*final["classes"]] == ["fever", "cough", "rash"]
    assert final["confusion"] == []
    for label in ("fever", "cough"):
        true, said, one = known[f"target {label}"], known[f"answer {label}"], final["classes"][label]
        assert one["sensitivity"] == pytest.approx(sklearn.recall_score(true, said))
        assert one["precision"] == pytest.approx(sklearn.precision_score(true, said))
        assert one["f1"] == pytest.approx(sklearn.f1_score(true, said))
        assert one["auroc"] == pytest.approx(sklearn.roc_auc_score(true, known[f"output {label}"]))
    assert final["classes"]["rash"]["sensitivity"] is final["class_intervals"]["rash"]["sensitivity"] is None
    low, high = final["class_intervals"]["cough"]["sensitivity"]
    assert low < final["classes"]["cough"]["sensitivity"] < high


def test_a_model_may_name_its_classes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "final_sizes.py").write_text(ORGANS)
    monkeypatch.syspath_prepend(tmp_path)
    spec = "rounds: 1\nprotocol: fedavg\nmodel: {name: 'final_sizes:named', head: ['0.*']}\ndata: 'final_sizes:sizes'\n"
    (tmp_path / "f.yaml").write_text(spec + "final_evaluation: {predictions: true, resamples: 100}\n")
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    assert [*json.loads((tmp_path / "run/peer0/result.json").read_text())["final"]["classes"]] == ["small", "large"]
    known = table(tmp_path / "run/peer0/predictions.csv")
    assert [*known] == ["sample", "target", "answer", "output small", "output large"]
    model = load_model(tmp_path / "run/peer0/model.safetensors", user_model="final_sizes:named")
    x = np.random.default_rng(1).normal(size=(9, 4))
    assert model.predict(x, names=True) == [["small", "large"][one] for one in model.predict(x).tolist()]


def test_summary_and_report_tell_of_each_organ(
    organs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(organs)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert main(["summary", str(organs), "--out", str(tmp_path / "summary.json")]) == 0
    final = json.loads((tmp_path / "summary.json").read_text())["per_peer"][1]["final"]
    low, high = final["class_intervals"]["spleen"]["dice"]
    assert f"spleen {final['classes']['spleen']['dice']:.4f} ({low:.4f} to {high:.4f})" in said
    assert "peer1, dice of each class: nothing " in said
    assert main(["report", str(organs), "--out", str(tmp_path / "page.html"), "--csv"]) == 0
    assert "Each class: dice" in (tmp_path / "page.html").read_text()
    rows = [*csv.DictReader((tmp_path / "page" / "final.csv").read_text().splitlines())]
    (row,) = (one for one in rows if (one["peer"], one["class"], one["figure"]) == ("peer1", "spleen", "dice"))
    assert [float(row[name]) for name in ("value", "low", "high")] == [final["classes"]["spleen"]["dice"], low, high]


SHAPES = """
import torch
from peer.learning.randomness import derive
from peer.learning.tasks import Segmentation, Regression
class Rows(torch.utils.data.Dataset):
    def __init__(self, sizes):
        self.sizes = sizes
    def __len__(self):
        return len(self.sizes)
    def __getitem__(self, at):
        side = self.sizes[at]
        x = torch.randn(1, side, side, generator=torch.Generator().manual_seed(at))
        return x, (x[0] > 0).long()
def pictures():
    return Rows([8] * 24), Rows([8, 6, 12, 8])
def collate(samples):
    return tuple(map(torch.stack, zip(*samples)))
class Pictures(Segmentation):
    name: str
    evaluation_batch = 1
    def infer(self, forward, inputs):
        return forward(inputs)
def net(shape, classes):
    return torch.nn.Conv2d(1, 4, 1), torch.nn.Conv2d(4, classes, 1)
class Spread(Regression):
    name: str
    def results(self, sums, samples):
        return super().results(sums, samples) | {"r2": 1 / (samples - 1)}
def numbers():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)).numpy()
    return x, x.sum(1)
"""


@pytest.mark.parametrize(
    ("task", "more", "heads"),
    [
        (
            "final_shapes:Pictures",
            "model: 'final_shapes:net'\n"
            "data: {name: 'final_shapes:pictures', collate: 'final_shapes:collate', classes: 2}",
            ["sample", "dice", "iou", "pixels"],
        ),
        (
            "final_shapes:Spread",
            "data: 'final_shapes:numbers'",
            ["sample", "target", "answer", "output", "rmse", "mae", "r2"],
        ),
    ],
)
def test_no_closer_look_costs_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, more: str, heads: list[str]
) -> None:
    """Neither samples of other sizes nor a task that cannot judge one sample alone."""
    (tmp_path / "final_shapes.py").write_text(SHAPES)
    monkeypatch.delitem(sys.modules, "final_shapes", raising=False)
    spec = f"rounds: 1\nprotocol: {{name: fedavg, lr: 0.01}}\ntask: '{task}'\n{more}\n"
    (tmp_path / "f.yaml").write_text(spec + "final_evaluation: {predictions: true, resamples: 100}\n")
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    with (tmp_path / "run/peer0/predictions.csv").open() as file:
        told, *rows = csv.reader(file)
    assert told == heads
    assert len(rows) > 3
    if "r2" in told:
        assert {row[-1] for row in rows} == {""}
    result = json.loads((tmp_path / "run/peer0/result.json").read_text())
    assert result["final"]["intervals"].keys() == result["figures"].keys()


def test_a_closer_look_can_be_asked_for_later(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(SPEC + "finetune: {epochs: 1}\n")
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2, overrides=["final_evaluation=false"])
    plain = json.loads((tmp_path / "run/peer0/result.json").read_text())
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    looked = json.loads((tmp_path / "run/peer0/result.json").read_text())
    assert "final" not in plain
    assert looked["final"]
    assert looked["model_sha256"] == plain["model_sha256"]


def test_a_run_that_goes_on_leaves_no_older_predictions(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(SPEC + "finetune: {epochs: 1}\n")
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    told = json.loads((tmp_path / "run/peer0/result.json").read_text())
    known = table(tmp_path / "run/peer0/predictions.csv")
    assert told["figures"]["accuracy"] == pytest.approx(sklearn.accuracy_score(known["target"], known["answer"]))
    assert told["figures"]["accuracy"] != told["before_finetuning"]["figures"]["accuracy"]
    more = ["rounds=3", "final_evaluation=false", "finetune=null"]
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2, overrides=more)
    assert not (tmp_path / "run/peer0/predictions.csv").exists()


def test_equal_models_and_samples_have_equal_intervals(run: Path) -> None:
    first, second = (json.loads((run / id / "result.json").read_text()) for id in ("peer0", "peer1"))
    assert first["model_sha256"] == second["model_sha256"]
    assert first["final"] == second["final"]


def test_a_closer_look_can_be_stopped() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    measured = EvaluationPass(Classification(), np.ones((9, 1)), np.zeros(9, int), 2, 0.0)
    with pytest.raises(KeyboardInterrupt):
        intervals(measured.if_defined, 9, 100, 1, stop)


@pytest.mark.parametrize(
    "final",
    [
        {"intervals": {f"f{number}": None for number in range(100)}},
        {"intervals": {}, "classes": {str(number): {} for number in range(101)}},
        {"intervals": {}, "classes": {"liver": {"dice": 1e200}}},
        {"intervals": {}, "class_intervals": {str(number): {} for number in range(101)}},
        {"intervals": {}, "class_intervals": {"liver": {f"f{number}": None for number in range(100)}}},
        {"intervals": {}, "class_intervals": {"liver": {"dice": [0, "x"]}}},
        {"intervals": {}, "confusion": [[0] * 101]},
        {"intervals": {"auroc": [0, "x"]}},
    ],
)
def test_a_lying_result_is_no_result(run: Path, tmp_path: Path, final: dict[str, object]) -> None:
    told = json.loads((run / "peer0" / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(told))
    assert read_result(tmp_path) is not None
    (tmp_path / "result.json").write_text(json.dumps(told | {"final": final}))
    assert read_result(tmp_path) is None


def test_summary_and_report_tell_of_it_and_of_none_where_none_was_asked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(run)]) == 0
    said = capsys.readouterr().out
    assert main(["summary", str(run), "--out", str(tmp_path / "summary.json")]) == 0
    peer = json.loads((tmp_path / "summary.json").read_text())["per_peer"][0]
    low, high = peer["final"]["intervals"]["auroc"]
    assert f"peer0: auroc {peer['figures']['auroc']:.4f} ({low:.4f} to {high:.4f})" in said
    known = {name: of["sensitivity"] for name, of in peer["final"]["classes"].items()}
    worst = min(known, key=lambda name: known[name])
    low, high = peer["final"]["class_intervals"][worst]["sensitivity"]
    told = f"{worst} {known[worst]:.4f} ({low:.4f} to {high:.4f})"
    assert f"peer0, sensitivity of the worst classes: {told}" in said
    assert main(["report", str(run), "--out", str(tmp_path / "page.html"), "--csv"]) == 0
    rows = [*csv.DictReader((tmp_path / "page" / "confusion.csv").read_text().splitlines())]
    assert sum(int(row["samples"]) for row in rows) == 2 * len(table(run / "peer0" / "predictions.csv")["sample"])
    told = [*csv.DictReader((tmp_path / "page" / "final.csv").read_text().splitlines())]
    assert {row["figure"] for row in told if not row["class"]} == {"auroc", "sensitivity", "accuracy"}
    (tmp_path / "f.yaml").write_text(SPEC)
    federate(tmp_path / "f.yaml", tmp_path / "plain", peers=2, overrides=["final_evaluation=false"])
    assert "final" not in json.loads((tmp_path / "plain/peer0/result.json").read_text())
    assert main(["report", str(tmp_path / "plain"), "--csv"]) == 0
    assert not (tmp_path / "plain/report/final.csv").exists()


def test_of_many_classes_the_page_draws_the_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "final_many.py").write_text(
        "import numpy as np\n"
        "def many():\n"
        "    y = np.arange(1200) % 30\n"
        "    x = 3 * np.eye(30)[y] * (y % 3 > 0)[:, None]  # every third class is not to be told from the others\n"
        "    return x + np.random.default_rng(0).normal(0, 0.1, (1200, 30)), y\n"
    )
    spec = "rounds: 3\nprotocol: {name: fedavg, lr: 0.1, epochs: 5}\ndata: 'final_many:many'\n"
    (tmp_path / "f.yaml").write_text(spec + "final_evaluation: {resamples: 100}\n")
    federate(tmp_path / "f.yaml", tmp_path / "run", peers=2)
    final = json.loads((tmp_path / "run/peer0/result.json").read_text())["final"]
    assert len(final["classes"]) == len(final["class_intervals"]) == len(final["confusion"]) == 30
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html"), "--csv"]) == 0
    drawn = document(tmp_path / "page.html")["tables"]
    told = {row["class"] for row in drawn["final"] if "class" in row}
    assert len(told) == 20
    assert {row["class"] for row in drawn["confusion"]} == {row["taken for"] for row in drawn["confusion"]} == told
    known = {name: of["sensitivity"] for name, of in final["classes"].items()}  # both peers' are the same
    assert max(known[name] for name in told) <= min(known[name] for name in known.keys() - told) > 0
    assert "These are the 20 worst classes; 10 more are in summary.json." in (tmp_path / "page.html").read_text()
    rows = [*csv.DictReader((tmp_path / "page" / "confusion.csv").read_text().splitlines())]
    assert len({row["class"] for row in rows}) == 30
    assert main(["summary", str(tmp_path / "run")]) == 0
    (line,) = re.findall(r"peer0, sensitivity of the worst classes: (.*)", capsys.readouterr().out)
    assert [float(one.split()[1]) for one in line.split("), ")[:8]] == sorted(round(one, 4) for one in known.values())[
        :8
    ]
