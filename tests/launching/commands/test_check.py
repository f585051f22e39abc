"""The dry run's figures against the theory, the list of protocols, and wrong input at the command line."""

import gc
import importlib
import json
import multiprocessing
import os
import re
import socket
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.commands.check import traffic
from launcher.commands.protocols import PURPOSES
from launcher.plan import plan
from peer.protocols.registry import PROTOCOLS
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

EXTRACTOR, HEAD = 4 * 116_352, 4 * 1_290
MODEL = EXTRACTOR + HEAD


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(
        "rounds: 6\nprotocol: {name: fibfl}\nmodel: {name: mlp}\n"
        "data: {name: digits, partition: {kind: dirichlet, alpha: 0.5}}\n"
    )
    return file


def a_spec(federation: Path, protocol: str, peers: int = 5) -> Spec:
    return load_spec(federation, peers=peers, seed=None, overrides=[f"protocol={protocol}"])


@pytest.mark.parametrize(
    ("protocol", "setup", "a_round"),
    [
        ("fibfl", 0, 2 * EXTRACTOR),
        ("fibfl+", 0, 2 * (EXTRACTOR + 8)),
        ("rdfl", 0, 2 * MODEL),
        ("gossip-sgd", 0, 4 * MODEL),
        ("fedavg", 2 * 4 / 5 * MODEL, 2 * 4 / 5 * MODEL),
        ("fedisp", 0, MODEL),
        ("solo", 0, 0),
    ],
)
async def test_traffic_is_the_theorys(federation: Path, protocol: str, setup: float, a_round: float) -> None:
    made = plan(a_spec(federation, protocol))
    sent = await traffic(made, ["peer0", "peer3"])
    for counts in sent.values():
        assert counts[0] == pytest.approx(setup, abs=8)
        assert counts[1:] == pytest.approx([a_round] * 6, abs=8)


async def test_fibfl_plus_plus_warms_up_once_then_gossips_in_three_passes(federation: Path) -> None:
    made = plan(a_spec(federation, "fibfl++"))
    (setup, warm_up, *gossip) = (await traffic(made, ["peer1"]))["peer1"]
    assert setup == 4 * (10 + 1) * 8  # four records of ten class proportions, and of the order, go on to the right
    assert warm_up == pytest.approx(2 * 4 / 5 * EXTRACTOR, abs=8)
    assert gossip == [3 * 2 * (EXTRACTOR + 8)] * 5


def test_the_data_is_dealt_as_published(federation: Path) -> None:
    spec = load_spec(federation, peers=5, overrides=["data.partition={kind: label-skew, k: 1}"])
    assert [site.sizes[0] for site in plan(spec).sites.values()] == [323, 253, 178, 165, 157]


def test_check_prints_what_a_federation_needs(
    federation: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["check", str(federation), "--peers", "5", "--set", "trace=true"]) == 0
    text = capsys.readouterr().out
    for part in ("input (1, 8, 8)", "10 classes", "116,352 values", "930.8 kB a peer and round", "peer4"):
        assert part in text
    assert [file.name for file in tmp_path.iterdir()] == ["small.yaml"]


def test_check_tells_of_experiments(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["behaviour={peer3: {kind: noise}}", "data.drift=[{round: 3, rotate: 90}, {round: 5, labels: [1, 0]}]"]
    assert main(["check", str(federation), "--peers", "5", *(f"--set={setting}" for setting in settings)]) == 0
    text = capsys.readouterr().out
    assert "the settings make these peers misbehave: peer3 (noise, scale 1)" in text
    assert "drift: from round 3 on turned by 90°; from round 5 on classes renamed to [1, 0]" in text


def test_check_tells_what_a_run_would_lack(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(federation), "--peers", "5", "--set=protocol={name: flexifed, resources: pinned}"]) == 0
    assert "lacking: `flexifed` goes by pinned resources, and `peer0` has none" in capsys.readouterr().out


@pytest.mark.parametrize(("plaintext", "told"), [(False, True), (True, False)])
def test_check_tells_of_a_ring_beyond_this_machine_without_certificates(
    plaintext: bool, told: bool, federation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = ", ".join(f"{{id: p{n}, address: '10.0.0.{n}:7700'}}" for n in range(1, 4))
    assert main(["check", str(federation), f"--set=ring=[{ring}]", f"--set=plaintext={str(plaintext).lower()}"]) == 0
    lacking = "lacking: 10.0.0.1:7700 is not on this machine and `p1` has no `tls`; make certificates with"
    assert (lacking in capsys.readouterr().out) is told


def test_protocols_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocols", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in entries] == list(PROTOCOLS)
    by_name = {entry["name"]: entry for entry in entries}
    for entry in entries:
        assert set(entry) == {"name", "paper", "edges", "shares", "records", "min_peers", "parameters"}
    assert by_name["fibfl++"]["shares"] == "extractor"
    assert by_name["fibfl++"]["records"] == "proportions, order"
    assert by_name["fedavg"]["records"] == "nothing"
    parameters = {one["name"]: one for one in by_name["fibfl++"]["parameters"]}
    assert parameters["gamma_start"]["default"] == 0.4
    assert parameters["warmup"] == {
        "name": "warmup",
        "default": None,
        "type": "integer or null",
        "description": parameters["warmup"]["description"],
    }
    assert parameters["warmup_shares"]["type"] == "extractor or model"


def test_protocols_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert {name for names in PURPOSES.values() for name in names} == {*PROTOCOLS}
    assert main(["protocols"]) == 0
    text = capsys.readouterr().out
    assert {*PROTOCOLS} <= {line.split()[0] for line in text.splitlines() if line.strip()}
    assert "proportions" in text


def test_all_bytes_are_those_of_the_rounds_and_of_the_start(
    federation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(federation), "--peers", "5", "--set", "protocol=fedavg"]) == 0
    all_of_it = 5 * (1 + 6) * 2 * 4 / 5 * MODEL  # one mean before the six rounds
    assert f"{all_of_it / 1e6:.1f} MB in all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "2"], "at least 3 peers"),
        (["--peers", "0"], "--peers 0"),
        (["--peers", "3", "--set", "roundz=3"], "did you mean `rounds`"),
        (["--peers", "3", "--set", "protocol.gamma=2"], "protocol.gamma"),
        (["--peers", "3", "--set", "gamma"], "write key=value"),
        (["--peers", "3", "--set", "data.name=nothing"], "nothing"),
        (["--peers", "3", "--set", "data={name: npz, path: missing.npz}"], "missing.npz"),
        (["--peers", "3", "--set", "model=cnnn"], "cnn"),
        (["--peers", "3", "--device", "abacus"], "--device abacus"),
        (
            ["--peers", "3", "--device", "mps"],
            "--device mps: choose auto, cpu, cuda or cuda:N; not mps, as Apple's",
        ),
        (["--peers", "3", "--set", "name=.."], "cannot name a directory"),
        (["--peers", "3", "--set", "ring=[]"], "ring"),
    ],
)
def test_wrong_input_is_one_message_and_creates_nothing(
    federation: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    first = 9600 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    assert main(["run", str(federation), *arguments, "--port", str(first)]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(r"(.+, \d+ peers?, in .+/runs/small\n)?", printed.out)
    assert printed.err.startswith("dfl-launch: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert os.listdir(tmp_path) == ["small.yaml"]


def test_address_in_use_creates_nothing(
    federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ring = ", ".join(f"{{id: p{n}, address: '127.0.0.1:{port if n == 1 else 9000 + n}'}}" for n in range(3))
        assert main(["run", str(federation), "--set", f"ring=[{ring}]"]) == 2
    said = capsys.readouterr().err
    assert f"p1 cannot listen at 127.0.0.1:{port}: address already in use (" in said
    assert f", process {os.getpid()}); " in said
    assert "--port" in said
    assert os.listdir(tmp_path) == ["small.yaml"]


def tables(folder: Path, columns: dict[str, str]) -> None:
    """<id>.csv with a header line and 20 rows each."""
    for id, header in columns.items():
        rows = [",".join([*(f"{row * 7 % 5}.5" for _ in header.split(",")[1:]), str(row % 2)]) for row in range(20)]
        (folder / f"{id}.csv").write_text("\n".join([header, *rows]) + "\n")


def test_check_of_peers_with_data_of_their_own(
    federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables(tmp_path, dict.fromkeys(["peer0", "peer1", "peer2"], "a,b,label"))
    check = ["check", str(federation), "--peers=3", "--set=data={name: csv, path: '{id}.csv'}"]
    assert main(check) == 0
    text = capsys.readouterr().out
    assert "data: each peer has its own, input (2,), 2 classes" in text
    assert re.findall(r"^ *(peer\d) +(\d+)", text, re.MULTILINE) == [(f"peer{n}", "16") for n in range(3)]
    tables(tmp_path, {"peer1": "b,a,label"})
    assert main(check) == 2
    said = "the data of peer1 has columns (b, a), and that of peer0 columns (a, b); make them alike"
    assert said in capsys.readouterr().err
    (tmp_path / "peer2.csv").unlink()
    assert main(check) == 2
    assert f"{tmp_path}/peer2.csv" in capsys.readouterr().err


def test_images_among_tables(federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables(tmp_path, {"common": "a,b,label"})
    ring = [{"id": f"p{n}", "address": f"127.0.0.1:{7700 + n}"} for n in range(3)]
    ring[1]["data"] = "digits"
    content = {"protocol": "fibfl", "data": {"name": "csv", "path": "common.csv"}, "ring": ring}
    federation.write_text(json.dumps(content))
    assert main(["check", str(federation)]) == 2
    said = "the data of p1 has inputs of shape (1, 8, 8) without named columns, and that of p0 columns (a, b); make"
    assert said in capsys.readouterr().err


def test_some_with_data_of_their_own(federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others take their parts of the split, which is what it would be without."""
    tables(tmp_path, dict.fromkeys(["common", "mine"], "a,b,label"))
    ring = [{"id": f"p{n}", "address": f"127.0.0.1:{7700 + n}"} for n in range(3)]
    ring[1]["data"] = {"name": "csv", "path": "mine.csv"}  # type: ignore[assignment]
    content = {"protocol": "fibfl", "data": {"name": "csv", "path": "common.csv"}, "ring": ring}
    federation.write_text(json.dumps(content))
    assert main(["check", str(federation)]) == 0
    text = capsys.readouterr().out
    assert "data: csv, split iid (but p1 with data of their own), input (2,), 2 classes" in text
    samples = dict(re.findall(r"^ *(p\d) +(\d+)", text, re.MULTILINE))
    assert samples == {"p0": "6", "p1": "16", "p2": "5"}


@pytest.mark.parametrize(
    ("protocol", "told"), [("gossip-sgd", "leaves the peer: model; travels as top-k"), ("solo", "changes nothing")]
)
def test_what_the_wire_does_is_told(
    federation: Path, protocol: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(federation), "--peers", "3", "--set", f"protocol={protocol}", "--set", "wire=top-k"]) == 0
    assert told in capsys.readouterr().out


async def test_a_launcher_starts_no_process_that_reads_samples(federation: Path) -> None:
    overrides = ["data.transforms=[RandomHorizontalFlip]", "data.workers=2", "training.clip_gradient=1"]
    before = multiprocessing.active_children()
    made = plan(load_spec(federation, peers=2, overrides=[*overrides, "protocol=hearth"]))
    await traffic(made, made.spec.ids)
    assert multiprocessing.active_children() == before


HELD = """
import weakref
import numpy as np
import torch

held, kept = [], []

def note(samples):
    kept.append(sum(one() is not None for one in held))
    held.append(weakref.ref(samples))

def arrays(root):
    x = np.random.default_rng(1).normal(size=(20, 4)).astype("f4")
    note(x)
    return x, np.arange(20) % 2, x[:6].copy(), np.arange(6) % 2

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.targets = np.arange(20) % 2
        note(self)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((4,), float(index)), int(self.targets[index])

def read_one_by_one(root):
    return Samples()
"""


@pytest.mark.parametrize("how", ["arrays", "read_one_by_one"])
def test_one_sites_data_are_gone_before_the_next_are_opened(how: str, federation: Path, tmp_path: Path) -> None:
    (tmp_path / f"held_{how}.py").write_text(HELD)
    data = {"name": f"held_{how}:{how}", "root": str(tmp_path / "{id}")}
    federation.write_text(json.dumps({"protocol": "fibfl", "data": data, "code": str(tmp_path)}))
    gc.disable()
    try:
        made = plan(load_spec(federation, peers=4))
    finally:
        gc.enable()
    assert [*made.sites] == [f"peer{n}" for n in range(4)]
    assert importlib.import_module(f"held_{how}").kept == [0, 0, 0, 0]


@pytest.mark.parametrize(("seed", "status"), [("", 2), ("0", 0)])
def test_a_function_that_returns_other_samples_each_time_is_found(
    seed: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"drawn{seed}.py").write_text(
        "import numpy as np\n\n\ndef blobs():\n"
        f"    rng = np.random.default_rng({seed})\n"
        "    y = np.arange(300) % 3\n"
        "    return rng.normal(size=(300, 4)).astype(np.float32) + y[:, None], y\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fed.yaml").write_text(f"rounds: 2\nprotocol: fibfl\ndata: {{name: 'drawn{seed}:blobs'}}\n")
    assert main(["check", str(tmp_path / "fed.yaml"), "--peers", "3"]) == status
    assert ("returns other samples each time it is called" in capsys.readouterr().err) == (status == 2)


def test_samples_that_are_changed_at_random_as_they_are_read_are_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "augmented.py").write_text(
        "import random\nimport torch\n\n\nclass Blobs(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 200\n\n"
        "    def __getitem__(self, i):\n"
        "        return torch.full((4,), i % 3 + random.random()) + torch.rand(4), i % 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fed.yaml").write_text("rounds: 2\nprotocol: fibfl\ndata: {name: 'augmented:Blobs'}\n")
    assert main(["check", str(tmp_path / "fed.yaml"), "--peers", "3"]) == 0
