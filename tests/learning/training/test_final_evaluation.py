"""`final_evaluation`: intervals, figures of each class and predictions, against scikit-learn and independent NumPy."""

import csv
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sklearn

from launcher.cli import main
from peer.learning.tasks import Classification, Regression
from peer.learning.training.evaluation import EvaluationPass, intervals
from peer.runtime.in_process import federate

SPEC = """
rounds: 2
protocol: {name: fedavg, lr: 0.1, epochs: 1}
data: {name: digits, limit: 200}
task: {name: classification, judged_by: [auroc, sensitivity]}
final_evaluation: {resamples: 200, predictions: true}
"""


def test_an_interval_is_that_of_the_resampled_figure() -> None:
    rng = np.random.default_rng(1)
    hits = (rng.random(400) < 0.8).astype(float)[:, None]
    found = intervals(EvaluationPass(Classification(), hits, np.zeros(400, int), 2, 0.0), 2000, seed=3)["accuracy"]
    assert found is not None
    other = np.random.default_rng(2)
    means = [other.choice(hits[:, 0], 400).mean() for _ in range(2000)]
    assert found == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.008)


def test_a_figure_that_is_rarely_defined_has_no_interval() -> None:
    task = Classification(judged_by=("sensitivity",))
    rows = np.array([[1.0, 0, 0, 1, 0]] * 40)  # nobody of class 1: what share of it is found is not known
    found = intervals(EvaluationPass(task, rows, np.zeros(40, int), 2, 0.0), 100, seed=0)
    assert found == {"sensitivity": None, "accuracy": (1.0, 1.0)}


def test_an_interval_is_the_same_each_time_and_of_each_task() -> None:
    rows = np.random.default_rng(0).random((50, 4))
    measured = EvaluationPass(Regression(name="regression"), rows, np.empty(0), 1, 0.0)
    assert intervals(measured, 100, 5) == intervals(measured, 100, 5)
    assert set(intervals(measured, 100, 5)) == {"rmse", "mae", "r2"}


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


def test_summary_and_report_tell_of_it_and_of_none_where_none_was_asked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(run)]) == 0
    said = capsys.readouterr().out
    assert main(["summary", str(run), "--out", str(tmp_path / "summary.json")]) == 0
    peer = json.loads((tmp_path / "summary.json").read_text())["per_peer"][0]
    low, high = peer["final"]["intervals"]["auroc"]
    assert f"peer0: auroc {peer['figures']['auroc']:.4f} ({low:.4f} to {high:.4f})" in said
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
