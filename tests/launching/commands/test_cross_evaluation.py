"""Each site's model on each site's test samples: figures against the models themselves, liars, and the command."""

import asyncio
import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from extras.cross_evaluation import CrossEvaluation
from launcher.cli import main
from peer import load_model
from peer.protocols.base import Received
from peer.runtime.in_process import federate

SITES = ("north", "south", "east")
RING = """
ring:
  - {id: north, address: "127.0.0.1:7793"}
  - {id: south, address: "127.0.0.1:7794"}
  - {id: east, address: "127.0.0.1:7795"}
"""
SPEC = (
    'name: sites\nprotocol: {name: fibfl, extractor_epochs: 2, head_epochs: 2}\ndata: {name: npz, path: "{id}.npz"}\n'
)
JUDGING = 'protocol: {name: "extras.cross_evaluation:CrossEvaluation"}\ninit: independent\nrounds: 3\n'
DATA = 'name: sites\ndata: {name: npz, path: "{id}.npz"}\nmodel: {weights: "run/{id}/model.safetensors"}\n'


def write_sites(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each site's test samples; what marks class 1 differs from site to site."""
    tests = {}
    for place, site in enumerate(SITES):
        rng = np.random.default_rng(place)
        x = rng.normal(size=(120, 6)).astype(np.float32)
        y = (x[:, place] + 0.3 * x[:, 3] > 0).astype(np.int64)
        np.savez(folder / f"{site}.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
        tests[site] = x[80:], y[80:]
    return tests


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    write_sites(folder)
    (folder / "f.yaml").write_text(SPEC + "rounds: 2\n" + RING)
    federate(folder / "f.yaml", folder / "run")
    (folder / "judging.yaml").write_text(DATA + JUDGING + RING)
    federate(folder / "judging.yaml", folder / "judged")
    return folder


def judged(run: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[tuple[str, str, str], float | None]:
    assert main(["cross-evaluation", str(run), "--json"]) == code
    rows = json.loads(capsys.readouterr().out)
    return {(row["judged at"], row["model of"], row["figure"]): row["value"] for row in rows}


def test_each_model_is_judged_on_the_test_samples_of_each_site(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged(sites / "judged", capsys)
    for model_of in SITES:
        model = load_model(sites / "run" / model_of / "model.safetensors")
        for at, (x, y) in write_sites(tmp_path).items():
            right = float((np.asarray(model.predict(x)) == y).mean())
            assert found[at, model_of, "local accuracy"] == pytest.approx(right)
        own = json.loads((sites / "run" / model_of / "result.json").read_text())
        assert found[model_of, model_of, "test loss"] == own["test_loss"]
    assert len({found[at, "north", "test loss"] for at in SITES}) == 3


def test_only_whole_models_travel_and_only_to_the_right(sites: Path) -> None:
    for place, site in enumerate(SITES):
        audit = [json.loads(line) for line in (sites / "judged" / site / "audit.jsonl").read_text().splitlines()]
        sent = [(line["round"], one["to"], one["vector"]) for line in audit for one in line["sent"]]
        right = SITES[(place + 1) % 3]
        assert sorted(sent) == [(2, right, "model"), (3, right, "model")]


@pytest.mark.parametrize(
    ("lie", "of"), [("noise, scale: 1.0e+6", "south"), ("noise, scale: 0.1", "south"), ("stale", "north")]
)
def test_a_changed_model_is_named_and_ends_nobody(
    sites: Path, tmp_path: Path, lie: str, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = judged(sites / "judged", capsys)
    (sites / "lied.yaml").write_text(DATA + JUDGING + f"behaviour: {{south: {{kind: {lie}}}}}\n" + RING)
    federate(sites / "lied.yaml", tmp_path / "run")
    assert main(["cross-evaluation", str(tmp_path / "run")]) == 1
    assert f"the peers' notes of {of}'s model differ" in capsys.readouterr().err
    found = judged(tmp_path / "run", capsys, 1)
    assert not [key for key in found if key[1] == of != key[0]]
    assert (of, of, "test loss") in found
    assert found == {key: value for key, value in honest.items() if key in found}


@pytest.mark.parametrize("spoilt", [None, "{", '{"history": "x"}'])
def test_a_peer_without_a_result_is_named(
    sites: Path, tmp_path: Path, spoilt: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in SITES[:2]:
        (tmp_path / site).mkdir()
        (tmp_path / site / "result.json").write_bytes((sites / "judged" / site / "result.json").read_bytes())
    if spoilt:
        (tmp_path / "east").mkdir()
        (tmp_path / "east/result.json").write_text(spoilt)
    assert main(["cross-evaluation", str(tmp_path)]) == 1
    assert "there is no result of east" in capsys.readouterr().err
    told = json.loads((tmp_path / "north/result.json").read_text())
    for round in told["history"]:
        round["notes"]["sha256"] = [0] * 32
    (tmp_path / "north/result.json").write_text(json.dumps(told))
    assert main(["cross-evaluation", str(tmp_path)]) == 1
    assert "the peers' notes of east's model differ" in capsys.readouterr().err


def test_a_model_of_huge_values_has_no_loss_and_ends_nobody(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in SITES:
        file = sites / "run" / site / "model.safetensors"
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        tensors = {name: tensor * (1e28 if site == "south" else 1) for name, tensor in load_file(file).items()}
        (tmp_path / "run" / site).mkdir(parents=True)
        save_file(tensors, tmp_path / "run" / site / "model.safetensors", metadata)
        (tmp_path / f"{site}.npz").symlink_to(sites / f"{site}.npz")
    (tmp_path / "f.yaml").write_text(DATA + JUDGING + RING)
    federate(tmp_path / "f.yaml", tmp_path / "judged")
    found = judged(tmp_path / "judged", capsys)
    assert found["north", "south", "test loss"] is None
    honest = judged(sites / "judged", capsys)
    assert {key: value for key, value in found.items() if key[1] != "south"} == {
        key: value for key, value in honest.items() if key[1] != "south"
    }


class Relay:
    """As much of a peer as passes a model on."""

    id, round, ring, members, left, position = "b", 2, ("a", "b"), ("a", "b"), "a", 1
    model = torch.zeros(1_000_000)

    async def exchange(self, share: str) -> dict[str, Received]:
        return {"a": Received(torch.full_like(self.model, torch.finfo(torch.float32).max), {})}

    async def compute(self, function: Callable[[torch.Tensor], bytes], vector: torch.Tensor) -> bytes:
        return function(vector)

    def note(self, **values: object) -> None:
        assert values["judged"] == 0


def test_what_a_liar_sends_can_be_passed_on() -> None:
    protocol = CrossEvaluation(name="extras.cross_evaluation:CrossEvaluation")
    asyncio.run(protocol.round(Relay()))  # type: ignore[arg-type]
    assert bool(Relay.model.sum().isfinite())


@pytest.mark.parametrize("note", [-1, 3, 0.5, None, [0], "north", 1e300])
def test_what_no_peer_notes_is_passed_over(
    sites: Path, tmp_path: Path, note: object, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads((sites / "judged/north/result.json").read_text())
    told["history"][1]["notes"]["judged"] = note
    (tmp_path / "north").mkdir()
    (tmp_path / "north/result.json").write_text(json.dumps(told))
    code = main(["cross-evaluation", str(tmp_path), "--json"])
    assert code == (2 if note == "north" else 1), "a result as no peer writes it is none; the others' are not there"
    told = json.loads(capsys.readouterr().out)
    assert isinstance(told, dict) or len({row["model of"] for row in told}) == 2


def test_the_command_asks_the_peers_of_a_finished_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ports: Callable[[int], list[int]],
) -> None:
    write_sites(tmp_path)
    monkeypatch.chdir(tmp_path)
    more = "rounds: 2\nhold_back: 0.2\nfinetune: {epochs: 1}\nstop_early: {patience: 1}\nfinal_evaluation: true\n"
    spec = SPEC + more + RING
    for usual, free in zip((7793, 7794, 7795), ports(3), strict=True):
        spec = spec.replace(f":{usual}", f":{free}")
    (tmp_path / "f.yaml").write_text(spec)
    assert main(["run", "f.yaml", "--quiet", "--out", "runs/a study"]) == 0
    for _ in range(2):
        assert main(["cross-evaluation", "runs/a study"]) == 0
    said = capsys.readouterr().out
    assert "elsewhere" in said
    again = tmp_path / "runs/a study-cross-evaluation"
    with (again / "cross-evaluation.csv").open() as file:
        rows = [*csv.DictReader(file)]
    losses = {(row["judged at"], row["model of"]): float(row["value"]) for row in rows if row["figure"] == "test loss"}
    for site in SITES:
        assert (
            losses[site, site]
            == json.loads((tmp_path / "runs/a study" / site / "result.json").read_text())["test_loss"]
        )
    assert main(["cross-evaluation", str(again)]) == 0, "a run of it shows itself"
    assert main(["cross-evaluation", "runs/a study", "--out", "runs/a study"]) == 2
    assert "holds another run" in capsys.readouterr().err
    (tmp_path / "runs/a study/east/model.safetensors").unlink()
    assert main(["cross-evaluation", "runs/a study"]) == 2
    assert "east left no model.safetensors" in capsys.readouterr().err
    assert main(["summary", str(again)]) == 0, "it is no code of somebody's own"
    assert main(["cross-evaluation", "nowhere"]) == 2
    assert "there is no directory nowhere" in capsys.readouterr().err
    assert main(["cross-evaluation", "runs"]) == 2
    assert "holds no cross-evaluation" in capsys.readouterr().err
