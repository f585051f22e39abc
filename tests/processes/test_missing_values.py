"""Three sites whose tables lack values, one of them a whole column: from the files to answers about gaps."""

import json
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from faults.accidents import start_and_die
from interpreter import Commands
from real_peers import Build, SmallFederation, digests

from launcher.reports.peer_files import audits
from peer import load_model
from peer.errors import FailedError
from peer.learning.data.samples import Names, Samples, typical_values
from peer.learning.data.sources import source_type
from peer.runtime.in_process import run_in_process
from peer.runtime.rounds import admission

pytestmark = pytest.mark.long

RULES = {"age": "mean", "crp": "median", "smokes": "category"}
KEYS = {"name": "csv", "label": "ill"}
SITES = {"peer0": 150, "peer1": 400, "peer2": 90}


def write_site(path: Path, rows: int) -> None:
    """Rows of which 2 % are ill; the smallest site has never measured a CRP."""
    draw = np.random.default_rng(rows)
    age, crp = draw.normal(rows / 5, 15, rows), draw.lognormal(1, 1, rows)
    table = pandas.DataFrame({"age": age.round(1), "crp": crp.round(2)})
    table["smokes"] = draw.integers(0, 2, rows)
    table = table.where(draw.random((rows, 3)) > [0.05, 0.1 if rows > 90 else 1, 0.2])
    table["ill"] = np.where(draw.permutation(rows) < max(2, rows // 50), "yes", "no")
    table.to_csv(path, index=False, na_rep="NA")


def sites(build: Build, directory: Path, **settings: Any) -> SmallFederation:
    for id, rows in SITES.items():
        write_site(directory / f"{id}.csv", rows)
    data = KEYS | {"path": str(directory / "{id}.csv"), "impute": RULES, **settings}
    return build({"name": "fedavg", "epochs": 1, "lr": 0.1}, 3, data=data, rounds=3)


def trained_on(directory: Path) -> list[pandas.DataFrame]:
    """What each site trains on, by the rule that the documentation has for tests."""
    tables = [pandas.read_csv(directory / f"{id}.csv") for id in SITES]
    orders = [np.random.default_rng(42).permutation(len(table)) for table in tables]
    return [table.iloc[order[: -round(0.2 * len(table))]] for table, order in zip(tables, orders, strict=True)]


def filled(parts: list[pandas.DataFrame]) -> tuple[dict[str, float], pandas.DataFrame]:
    """What stands for missing values, and all rows with them."""
    whole = pandas.concat(parts)
    medians = [(part["crp"].median(), part["crp"].count()) for part in parts if part["crp"].count()]
    crp = sum(median * count for median, count in medians) / sum(count for _, count in medians)
    values = {"age": whole["age"].mean(), "crp": crp, "smokes": whole["smokes"].mean()}
    columns = whole[[*RULES]].fillna(values)
    return values, columns.assign(told=whole["smokes"].isna().astype(float))


async def test_the_federations_values_are_found_together_whoever_is_killed(federation: Build, tmp_path: Path) -> None:
    made = sites(federation, tmp_path, standardize="federation")
    start_and_die(made, {"peer1": "all-reduce:1", "peer2": "communicating:4", "peer0": "evaluating:1"})
    assert made.wait() == dict.fromkeys(made.ids, 0), made.account()
    own = {id: source_type("csv").model_validate(KEYS | {"path": tmp_path / f"{id}.csv"}) for id in made.ids}
    runtimes = await run_in_process(made.spec, tmp_path / "memory", own=own)
    assert digests(made.results()) == {id: one.setup.model.sha256() for id, one in runtimes.items()}

    values, rows = filled(trained_on(tmp_path))
    for id in made.ids:
        model = load_model(made.directory / id / "model.safetensors")
        assert model.names.columns == (*RULES, "smokes missing")
        assert model.standard
        assert model.standard.imputed is not None
        assert np.allclose(model.standard.imputed[:3], [*values.values()], rtol=1e-5)
        assert np.allclose(model.standard.means, rows.mean(), rtol=1e-5)
        assert np.allclose(model.standard.deviations, rows.std(ddof=0), rtol=1e-5)
        asked = pandas.read_csv(tmp_path / f"{id}.csv")[["crp", "smokes", "age"]]
        by_hand = asked.fillna(values)[[*RULES]].assign(told=asked["smokes"].isna().astype(float))
        z = (by_hand - rows.mean().to_numpy()) / rows.std(ddof=0).to_numpy()
        answers = model.forward(torch.from_numpy(z.to_numpy(np.float32, copy=True))).argmax(1)
        assert model.predict(asked).tolist() == answers.tolist()
    rounds = audits({id: made.directory / id for id in made.ids})["peer0"]
    sent = {entry.vector: entry.bytes for entry in rounds[0].sent}
    assert sent["column imputation"] == 4 * 6 * 4 // 3, "of three columns a share and a value"
    assert not any("column" in entry.vector for one in rounds[1:] for entry in one.sent)


def test_each_peers_own_values_stay_its_own(federation: Build, tmp_path: Path) -> None:
    rules = {"age": "mean", "smokes": "category"}
    made = sites(federation, tmp_path, standardize="own", impute=rules, columns=[*rules])
    made.run()
    for id, trained in zip(made.ids, trained_on(tmp_path), strict=True):
        standard = load_model(made.directory / id / "model.safetensors").standard
        assert standard
        assert standard.imputed is not None
        assert np.allclose(standard.imputed[:2], trained[[*rules]].mean(), rtol=1e-6)
        assert "column" not in (made.directory / id / "audit.jsonl").read_text()


def test_what_is_missing_is_said_and_what_leaves(federation: Build, commands: Commands, tmp_path: Path) -> None:
    made = sites(federation, tmp_path)
    spec, out = str(made.directory / "federation.yaml"), str(tmp_path / "run")
    checked = commands.run(["-m", "launcher.cli", "check", spec])
    missing = pandas.read_csv(tmp_path / "peer2.csv").isna().sum()
    counts = f"{missing['age']} in `age` (mean), 90 in `crp` (median), {missing['smokes']} in `smokes` (category)"
    assert f"read: of 90 rows, these lack a value, which is imputed: {counts} (peer2)\n" in checked.stdout
    assert "leaves the peer: model, column imputation\n" in checked.stdout
    run = commands.run(["-m", "launcher.cli", "run", spec, "--out", out])
    assert run.returncode == 0, run.stdout
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert privacy["of_data"] == {"column imputation": 96}
    assert not privacy["violations"]


@pytest.mark.parametrize(("standardize", "whose"), [("federation", "all 3 peers"), ("own", "peer2")])
def test_a_column_that_nobody_has_is_refused(
    standardize: str, whose: str, federation: Build, commands: Commands, tmp_path: Path
) -> None:
    made = sites(federation, tmp_path, standardize=standardize)
    for id in ("peer1", "peer0") if standardize == "federation" else ():
        pandas.read_csv(tmp_path / f"{id}.csv").assign(crp=None).to_csv(tmp_path / f"{id}.csv", index=False)
    checked = commands.run(["-m", "launcher.cli", "check", str(made.directory / "federation.yaml")], stderr=PIPE)
    assert checked.returncode == 2
    why = f"the data of {whose}: column `crp` has no value in any training sample"
    assert why in checked.stderr
    if standardize == "federation":
        made.start()
        assert set(made.wait().values()) == {2}
        assert "column `crp` has no value in any training sample" in made.log("peer0")


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (-5.0, "for missing ones, as found with the other peers, are of no use"),
        (None, "this peer has values of all columns, so another's figures are false"),
        (float("nan"), "is not finite in round 0"),
    ],
)
async def test_a_peer_that_lies_about_its_gaps_ends_the_run(
    lie: float | None, message: str, federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = sites(federation, tmp_path), list[str]()

    def lying(samples: Samples, names: Names) -> torch.Tensor:
        told.append("values")
        found = typical_values(samples, names)
        own, others = len(samples), sum(map(len, trained_on(tmp_path))) - len(samples)
        if lie is None:  # the liar takes from the sum what all others add to it
            return torch.cat([torch.tensor([1.0 if len(told) > 1 else -others / own]), found[1:].clamp(min=0.1)])
        return found if len(told) > 1 else torch.cat([torch.tensor([lie]), found[1:]])

    monkeypatch.setattr(admission, "typical_values", lying)
    with pytest.raises((FailedError, ExceptionGroup)) as caught:
        await run_in_process(made.spec, tmp_path / "memory")
    error: BaseException = caught.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert message in str(error)
