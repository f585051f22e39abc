"""What each site has: figures against pandas, what is hidden, liars, and the command."""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from real_peers import until

from extras.statistics import FEW, HIDDEN, Statistics, voxels_of
from launcher.cli import main
from peer.protocols.base import Received
from peer.runtime.in_process import federate

SITES = {"north": 90, "south": 60, "east": 8}
SPEC = """
name: sites
protocol: {protocol}
data: {{name: csv, path: "{{id}}.csv", label: ill, class_names: ["no", "yes"]{more}}}
ring:
  - {{id: north, address: "127.0.0.1:7790"}}
  - {{id: south, address: "127.0.0.1:7791"}}
  - {{id: east, address: "127.0.0.1:7792"}}
"""
PROTOCOL = '{name: "extras.statistics:Statistics", flagged: true}'


def write_sites(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for site, rows in SITES.items():
        frame = pandas.DataFrame(
            {
                "age": rng.integers(20, 90, rows),
                "bmi": np.where(rng.random(rows) < 0.3, np.nan, rng.normal(26, 4, rows).round(2)),
                "smoker": rng.integers(0, 2, rows),
                "rare": (np.arange(rows) == 5).astype(int),
                "ill": np.where(rng.random(rows) < 0.4, "yes", "no"),
            }
        )
        frame.to_csv(folder / f"{site}.csv", index=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    write_sites(folder)
    (folder / "f.yaml").write_text(SPEC.format(protocol=PROTOCOL, more=", impute: category") + "rounds: 1\n")
    federate(folder / "f.yaml", folder / "run")
    return folder / "run"


def told(run: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert main(["statistics", str(run), "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def trained_on(run: Path, site: str) -> pandas.DataFrame:
    rows = SITES[site]
    order = np.random.default_rng(42).permutation(rows)
    return pandas.read_csv(run.parent / f"{site}.csv").iloc[order[: rows - max(1, round(0.2 * rows))]]


def test_the_figures_are_those_of_the_sites_training_samples(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {(one["site"], one["column"]): one for one in told(run, capsys) if "column" in one}
    counts = {(one["site"], one["class"]): one["samples"] for one in told(run, capsys) if "class" in one}
    for site in SITES:
        trained = trained_on(run, site)
        assert counts[site, "all"] == len(trained)
        for column in ("age", "bmi", "smoker"):
            one, values = known[site, column], trained[column]
            missing = int(values.isna().sum())
            beside_rare = column == "smoker" and trained["rare"].any()  # which has the same values
            if beside_rare or (site == "east" and values.nunique() > 1):
                assert one["mean"] is None, "a mean would tell of few"
                continue
            assert one["mean"] == pytest.approx(values.mean(), rel=1e-5)
            assert one["deviation"] == pytest.approx(values.std(ddof=0), rel=1e-5)
            assert one["missing"] == missing
        assert known[site, "rare"]["mean"] == (None if trained["rare"].any() else 0), "a mean would tell of the one"
    told_of_bmi = known["north", "bmi"]["histogram"]
    assert isinstance(told_of_bmi, list)
    assert len(told_of_bmi) == 8
    assert all(one is None or one == 0 or one >= 5 for one in told_of_bmi)
    bounds = known["north", "bmi"]["bounds"]
    assert bounds == sorted(set(bounds)) == known["south", "bmi"]["bounds"]
    values = trained_on(run, "north")["bmi"].dropna()
    counted, _ = np.histogram(values, [-np.inf, *bounds, np.inf])
    assert all(one in (None, int(count)) for one, count in zip(told_of_bmi, counted, strict=True))
    assert main(["statistics", str(run)]) == 0
    with (run / "statistics.csv").open() as file:
        (row,) = (one for one in csv.DictReader(file) if (one["site"], one["column"]) == ("north", "bmi"))
    assert [*map(float, row["bounds"].split())] == bounds


def test_its_figures_are_not_called_those_of_code_of_your_own(run: Path) -> None:
    audit = [json.loads(line) for line in (run / "north" / "audit.jsonl").read_text().splitlines()]
    assert not any({"noted", "own_code"} & line.keys() for line in audit)


@given(counts=st.lists(st.one_of(st.integers(0, 12), st.integers(0, 5000)), max_size=12), smallest=st.integers(1, 40))
def test_nothing_of_few_can_be_told_from_counts_and_their_sum(counts: list[int], smallest: int) -> None:
    protocol = Statistics(name="extras.statistics:Statistics", smallest=smallest)
    shown = protocol.hidden(torch.tensor(counts).double()).tolist()
    hidden = [count for count, one in zip(counts, shown, strict=True) if one == HIDDEN]
    assert all(one in (HIDDEN, count) for count, one in zip(counts, shown, strict=True))
    assert all(one <= 0 or one >= smallest for one in shown)
    if hidden and hidden != [count for count in counts if count]:
        assert len(hidden) > 1
        assert sum(hidden) - len(hidden) >= smallest, "each is at least 1, and their sum is known"


def test_one_value_far_from_the_others_is_not_told_by_mean_and_deviation() -> None:
    protocol = Statistics(name="extras.statistics:Statistics")
    usual = torch.linspace(0, 100, 79).double()
    few_missing = torch.cat([usual[:-1], torch.tensor([torch.nan])])
    one_hot = (torch.arange(79) < 3).double()
    columns = torch.stack([usual, torch.cat([usual[:-1], torch.tensor([1e6])]), few_missing, one_hot, 1 - one_hot], 1)
    assert protocol.secret(columns) == [False, True, True, True, True]


def test_neither_a_liar_nor_one_sample_moves_the_bins_by_a_little() -> None:
    protocol = Statistics(name="extras.statistics:Statistics")
    sites = {str(n): torch.tensor([50, 0, 0.0, mean, 10.0]).double() for n, mean in enumerate((40, 42, 44))}
    edges = protocol.edges(sites, 1)
    for lie in (-1e30, 0, 43, 1e30):
        moved = protocol.edges(sites | {"liar": torch.tensor([1e9, 0, 0.0, lie, 0.0]).double()}, 1)
        assert bool(((moved - edges).abs() / 8 % 0.5 == 0).all())
        assert float((moved - edges).abs().max()) <= 16


CROPPED = """
import torch
from peer.learning.tasks import Segmentation

class OneByOne(Segmentation):
    name: str
    evaluation_batch = 1

class Scans(torch.utils.data.Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, at):
        return [torch.full((1, 4, 4), at + crop) for crop in (0.0, 1.0)]

def scans():
    return Scans(), Scans()

def collate(samples):
    x = torch.cat([torch.stack(one) for one in samples])
    return x, torch.zeros(len(x), 4, 4, dtype=torch.int64)

def net(shape, classes):
    return torch.nn.Conv2d(1, classes, 1)
"""


@pytest.mark.parametrize("task", ["segmentation", "cropped:OneByOne"])
def test_several_crops_of_one_sample_are_one_sample(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cropped.py").write_text(CROPPED)
    data = {"name": "cropped:scans", "collate": "cropped:collate", "classes": 2}
    spec = {"rounds": 1, "task": task, "data": data, "model": {"name": "cropped:net", "head": ["bias"]}}
    for smallest, samples in ((5, 30), (31, None)):
        protocol = {"name": "extras.statistics:Statistics", "smallest": smallest}
        (tmp_path / "f.yaml").write_text(json.dumps(spec | {"protocol": protocol}))
        federate(tmp_path / "f.yaml", tmp_path / str(smallest), peers=2)
        found = told(tmp_path / str(smallest), capsys)
        assert [one["samples"] for one in found if "class" in one] == [samples, samples]
        means = [one["mean"] for one in found if one.get("column") == "channel 0, mean"]
        assert [mean is None for mean in means] == [samples is None] * 2
        assert samples is None or np.mean(means) == pytest.approx(30), "of 0 to 59, and of their crops 0.5 more"


MEASURED = """
import numpy as np
import torch

class Volumes(torch.utils.data.Dataset):
    def __init__(self, site):
        table = np.loadtxt(f"{site}.txt")
        self.spacings, self.sizes = table[:, :3], table[:, 3:].astype(int)
    def __len__(self):
        return len(self.sizes)
    def __getitem__(self, at):
        image, turned = torch.rand(1, 4, 4, 4), ROTATION @ np.diag([*self.spacings[at], 1])
        image.meta = {"original_affine": turned, "spatial_shape": self.sizes[at]}
        return image, at % 2

ROTATION = np.eye(4)
ROTATION[:2, :2] = [[0, -1], [1, 0]]

def volumes(root):
    return Volumes(root), Volumes(root)
"""


def write_volumes(folder: Path) -> dict[str, np.ndarray]:
    """Of each volume its spacing and its size along three axes."""
    rng, written = np.random.default_rng(5), {}
    for site, count in (("north", 40), ("south", 30), ("east", 30)):
        thick = np.where(np.arange(count) < 12, 1.25, 5.0)
        spacing = np.stack([rng.uniform(0.5, 1, count), rng.uniform(0.5, 1, count), thick], 1)
        sizes = np.stack([np.full(count, 512), rng.integers(300, 500, count), np.arange(count) // 10 + 40], 1)
        written[site] = np.concatenate([spacing, sizes], 1)
        if site == "east":
            written[site][3, 5] = 900
        np.savetxt(folder / f"{site}.txt", written[site])
    return written


def told_of_volumes(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str = "extras.statistics:Statistics", **keys: object
) -> dict[tuple[object, object], dict[str, object]]:
    ring = [{"id": id, "address": f"127.0.0.1:{7790 + at}"} for at, id in enumerate(SITES)]
    data = {"name": "measured:volumes", "root": "{id}"}
    spec = {"rounds": 1, "protocol": {"name": name, **keys}, "data": data, "model": "mlp", "ring": ring}
    (folder / "f.yaml").write_text(json.dumps(spec))
    federate(folder / "f.yaml", folder / name)
    return {(one["site"], one["column"]): one for one in told(folder / name, capsys) if "column" in one}


def test_spacing_and_size_of_volumes_are_told_as_their_metadata_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = write_volumes(tmp_path)
    (tmp_path / "measured.py").write_text(MEASURED)
    found = told_of_volumes(tmp_path, capsys)
    names = [f"axis {at}, {what}" for what in ("spacing", "size") for at in range(3)]
    assert [column for site, column in found if site == "north"][2:] == names
    for site, table in written.items():
        for name, values in zip(names, table.T, strict=True):
            one = found[site, name]
            if (site, name) == ("east", "axis 2, size"):
                assert one["mean"] is None, "of few kinds one is rare"
                continue
            assert one["mean"] == pytest.approx(values.mean(), rel=1e-4)
            assert one["deviation"] == pytest.approx(values.std(), rel=1e-3, abs=1e-4)
            assert one["missing"] == 0
        bins = found[site, "axis 2, spacing"]["histogram"]
        assert isinstance(bins, list)
        assert sum(one for one in bins if one) == len(table)
        assert 12 in bins, "of 1.25"


IMPOSSIBLE = """
from extras.statistics import Statistics

class Lies(Statistics):
    lie: str
    def counts(self, peer, columns, secret):
        told = super().counts(peer, columns, secret)
        if peer.id == "south":
            told[-17] = float(self.lie)  # the mean spacing along the first axis
        return told
"""


@pytest.mark.parametrize(("lie", "believed"), [(-5.0, False), (0.0, False), (1e30, True)])
def test_an_impossible_spacing_changes_nothing_of_what_others_tell(
    lie: float, believed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_volumes(tmp_path)
    (tmp_path / "measured.py").write_text(MEASURED)
    (tmp_path / "lying.py").write_text(IMPOSSIBLE)
    honest, now = told_of_volumes(tmp_path, capsys), told_of_volumes(tmp_path, capsys, "lying:Lies", lie=str(lie))
    binned = {"histogram": None, "bounds": None}
    for key, one in now.items():
        if key[0] != "south":
            assert one | binned == honest[key] | binned
    assert (("south", "axis 0, spacing") in now) == believed


VOXELS_GIVEN = [
    ({"original_affine": np.diag([0.7, 0.7, 5, 1]), "spatial_shape": (512, 512, 40)}, [0.7, 0.7, 5, 512, 512, 40]),
    ({"original_affine": np.diag([0, -0.5, np.inf, 1]), "spatial_shape": (8, 8, 8)}, [None, 0.5, None, 8, 8, 8]),
    ({"original_affine": np.eye(3), "spatial_shape": (8, 8)}, [None] * 6),
    ({"original_affine": "none", "spatial_shape": None}, [None] * 6),
    ({"original_affine": np.eye(4)}, [None] * 6),
    ({}, [None] * 6),
    (None, [None] * 6),
]


@pytest.mark.parametrize(("meta", "wanted"), VOXELS_GIVEN)
def test_what_metadata_do_not_say_is_missing(meta: object, wanted: list[float | None]) -> None:
    image = torch.zeros(1, 4, 4, 4)
    image.meta = meta  # type: ignore[attr-defined]
    for sample in ((image, 1), {"image": image}, [{"image": image}, {"image": image}]):
        assert [None if one != one else one for one in voxels_of(sample)] == wanted


class Site:
    """As much of a peer as reads what others tell."""

    proportions = torch.ones(2)

    class task:
        has_classes = True

    class data:
        labels = torch.tensor([0, 1, 1])


@given(lie=arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
def test_what_cannot_be_is_not_told_and_moves_no_bin_beyond_reason(lie: np.ndarray) -> None:
    protocol, columns = Statistics(name="extras.statistics:Statistics"), 3
    honest = torch.tensor([50, 2, 20, 30, *(0, 1.0, 2.0) * columns]).double()
    vector = torch.from_numpy(lie)
    read = protocol.read(Site(), Received(vector, {}), columns)  # type: ignore[arg-type]
    if read is not None:
        assert bool(read.isfinite().all())
        assert len(read) == 4 + 3 * columns
        assert bool((read[:4] == read[:4].round()).all())
    edges = protocol.edges({"a": honest} | ({"b": read} if read is not None else {}), columns)
    assert edges.shape == (7, columns)
    bins = protocol.read_bins(Received(vector, {}), columns)
    assert bins is None or bool(((bins >= HIDDEN) & bins.isfinite()).all())
    assert FEW < HIDDEN < 0


def test_a_liar_ends_nobody_and_what_others_tell_stands(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    liar = "rounds: 1\nbehaviour: {south: {kind: noise, scale: 1000000}}\n"
    (run.parent / "liar.yaml").write_text(SPEC.format(protocol=PROTOCOL, more=", impute: category") + liar)
    federate(run.parent / "liar.yaml", run.parent / "lied")
    honest = [one for one in told(run, capsys) if one["site"] == "north"]
    told_now = [one for one in told(run.parent / "lied", capsys) if one["site"] == "north"]
    keys = ("class", "samples", "column", "missing", "mean", "deviation")
    assert [[one.get(key) for key in keys] for one in told_now] == [[one.get(key) for key in keys] for one in honest]


def test_the_command_asks_real_peers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ports: Callable[[int], list[int]],
) -> None:
    write_sites(tmp_path)
    monkeypatch.chdir(tmp_path)
    more = "rounds: 50\nhold_back: 0.2\nrewinds: [2]\ntraining: {patience: 2}\n"
    spec = SPEC.format(protocol="fibfl", more="") + more
    for usual, free in zip((7790, 7791, 7792), ports(3), strict=True):
        spec = spec.replace(f":{usual}", f":{free}")
    (tmp_path / "f.yaml").write_text(spec)
    assert main(["statistics", "f.yaml"]) == 0
    said = capsys.readouterr().out
    assert "bmi" in said
    with (tmp_path / "runs/sites-statistics/statistics.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert {row["site"] for row in rows} == set(SITES)
    audit = (tmp_path / "runs/sites-statistics/north/audit.jsonl").read_text().splitlines()
    left = {one["vector"] for line in audit for one in json.loads(line)["sent"]}
    assert left == {"counts", "histograms"}, "nothing of the columns leaves by imputation"
    (tmp_path / "f.yaml").write_text(spec.replace(more, "rounds: 1\nhold_back: 0.2\n"))
    assert main(["run", "f.yaml", "--quiet", "--out", "runs/trained", "--set", "data.impute=mean"]) == 0
    capsys.readouterr()
    assert main(["statistics", "f.yaml", "--json", "--set", "rewinds=[2]", "--out", "runs/sites-statistics"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2
    assert main(["statistics", "f.yaml", "--out", "runs/trained"]) == 2
    assert "runs/trained holds another run" in capsys.readouterr().err
    assert main(["statistics", "runs"]) == 2
    assert "holds no statistics" in capsys.readouterr().err


SLOW = """
import time
from pathlib import Path
import numpy as np

def made():
    run = Path(__file__).parent / "runs" / "sites-statistics"
    if (run / "federation.yaml").exists():  # else the launcher only looks whether the data are there
        (run / "asked").touch()
        time.sleep(600)
    return np.zeros((40, 3), np.float32), np.arange(40) % 2
"""


def test_ctrl_c_while_peers_are_asked(tmp_path: Path, ports: Callable[[int], list[int]]) -> None:
    ring = [f"{{id: peer{at}, address: '127.0.0.1:{port}'}}" for at, port in enumerate(ports(2))]
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "f.yaml").write_text(f"name: sites\nprotocol: fibfl\ndata: 'slow:made'\nring: [{', '.join(ring)}]\n")
    command = [sys.executable, "-m", "launcher.cli", "statistics", "f.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as asking:
        until((tmp_path / "runs/sites-statistics/asked").exists, 60, "the peers are asked")
        asking.send_signal(signal.SIGINT)
        said, complained = asking.communicate(timeout=60)
    assert asking.returncode == 130
    assert said == "Asking the peers, in runs/sites-statistics\n"
    assert complained == "dfl-launch: stopped\n"


@pytest.mark.parametrize("note", [7.0, [3.0], [5, -100, 1], [1, None], ["x", 1], [5, 1e12]])
def test_what_is_no_statistics_is_none(run: Path, tmp_path: Path, note: object) -> None:
    told = json.loads((run / "north/result.json").read_text())
    told["history"][0]["notes"]["counts of north"] = note
    (tmp_path / "north").mkdir()
    (tmp_path / "north/result.json").write_text(json.dumps(told))
    assert main(["statistics", str(tmp_path)]) == 2


def test_peers_that_tell_of_other_statistics_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in SITES:
        told = json.loads((run / site / "result.json").read_text())
        if site == "south":
            told["history"][0]["notes"]["counts of north"][0] += 1
        (tmp_path / site).mkdir()
        (tmp_path / site / "result.json").write_text(json.dumps(told))
    assert main(["statistics", str(tmp_path)]) == 2
    assert "east and south report different statistics, so one of them lies" in capsys.readouterr().err
