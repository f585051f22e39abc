"""Three sites with German CSV files of their own, standardised together: from the files to answers in labels."""

import json
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
from faults.accidents import start_and_die
from interpreter import Commands
from real_peers import Build, SmallFederation, digests

from launcher.reports.peer_files import audits
from peer import load_model
from peer.errors import InputError
from peer.learning.data.sources import Source, source_type
from peer.runtime.in_process import run_in_process

pytestmark = pytest.mark.long

COLUMNS = ["Alter", "Größe", "fest"]
SITES = {"peer0": (60, "utf-8"), "peer1": (25, "cp1252"), "peer2": (90, "utf-16")}


def write_site(path: Path, rows: int, encoding: str) -> None:
    """Ages, and heights of which those of some sites are larger; the label is a word."""
    draw = np.random.default_rng(rows)
    age, height = draw.normal(40 + rows / 3, 12, rows), draw.normal(170e6, 9e6, rows)
    ill = age / 12 + height / 9e6 + draw.normal(0, 0.3, rows) > 23.5
    rows_of = zip(age, height, ["krank" if one else "gesund" for one in ill], strict=True)
    lines = [f"{years:.2f};{size:.1f};7;{said}".replace(".", ",") for years, size, said in rows_of]
    path.write_bytes("\r\n".join([";".join([*COLUMNS, "Befund"]), *lines]).encode(encoding))


def sites(build: Build, **settings: Any) -> SmallFederation:
    data = {"path": "{id}.csv", "label": "Befund", "decimal": ",", "columns": COLUMNS, **settings}
    made = build({"name": "fedavg", "epochs": 2, "lr": 0.1}, 3, data={"name": "csv", **data}, rounds=3)
    for id, (rows, encoding) in SITES.items():
        write_site(made.directory / f"{id}.csv", rows, encoding)
        made.configure(id, data=keys(id))
    return made


def keys(id: str) -> dict[str, Any]:
    """The keys of a site's data, in its own file."""
    read = {"decimal": ",", "encoding": SITES[id][1], "columns": COLUMNS}
    return {"name": "csv", "path": f"{id}.csv", "label": "Befund", **read}


def own_data(made: SmallFederation) -> dict[str, Source]:
    return {id: source_type("csv").model_validate(keys(id)).relative_to(made.directory) for id in made.ids}


def trained_on(made: SmallFederation) -> list[np.ndarray[Any, np.dtype[Any]]]:
    read = [source.load() for source in own_data(made).values()]
    return [np.asarray(one.parts["train"].inputs[np.arange(len(one.train_targets))], np.float64) for one in read]


async def test_the_federations_values_are_found_together_whoever_is_killed(federation: Build, tmp_path: Path) -> None:
    made = sites(federation, standardize="federation")
    start_and_die(made, {"peer1": "all-reduce:1", "peer2": "communicating:4", "peer0": "evaluating:1"})
    assert made.wait() == dict.fromkeys(made.ids, 0), made.account()
    runtimes = await run_in_process(made.spec, tmp_path / "memory", own=own_data(made))
    assert digests(made.results()) == {id: one.setup.model.sha256() for id, one in runtimes.items()}

    together = np.concatenate(trained_on(made))
    for id in made.ids:
        model = load_model(made.directory / id / "model.safetensors")
        assert model.standard
        assert np.allclose(model.standard.means, together.mean(0), rtol=1e-6)
        assert np.allclose(model.standard.deviations, [*together.std(0)[:2], 1], rtol=1e-5)
        assert model.names.columns == (*COLUMNS,)
    rounds = audits({id: made.directory / id for id in made.ids})["peer0"]
    sent = {entry.vector: entry.bytes for entry in rounds[0].sent}
    assert sent["column means"] == sent["column variances"] == 4 * 6 * 4 // 3
    assert not any("column" in entry.vector for one in rounds[1:] for entry in one.sent)


def test_each_peers_own_values_stay_its_own(federation: Build) -> None:
    made = sites(federation, standardize=True)
    made.run()
    for id, trained in zip(made.ids, trained_on(made), strict=True):
        standard = load_model(made.directory / id / "model.safetensors").standard
        assert standard
        assert np.allclose(standard.means, trained.mean(0), rtol=1e-6)
        assert "column" not in (made.directory / id / "audit.jsonl").read_text()


def test_a_saved_model_answers_in_labels_to_named_columns(federation: Build) -> None:
    import pandas

    made = sites(federation, standardize="federation")
    made.run()
    model = load_model(made.directory / "peer0" / "model.safetensors")
    frame = pandas.read_csv(made.directory / "peer1.csv", sep=";", decimal=",", encoding="cp1252")
    asked = frame[["fest", "Größe", "Alter"]]
    said = model.predict(asked, names=True)
    assert {*said} <= {"gesund", "krank"}
    assert np.mean([one == other for one, other in zip(said, frame["Befund"], strict=True)]) > 0.7
    values = frame[COLUMNS].to_numpy(np.float32)
    assert said == model.predict(values, names=True)
    assert said[3] == model.predict(values[3].copy(), names=True)
    for wrong, message in (
        (frame, "the model knows no column `Befund`; leave it out, it goes by Alter, Größe, fest"),
        (asked.drop(columns="Alter"), "there is no column `Alter`, which the model goes by"),
        (asked.rename(columns={"Alter": "alter"}), "there is no column `Alter`, which the model goes by; .*`alter`"),
        (asked.assign(Alter=["x"] * len(asked)), "column `Alter` holds something other than numbers"),
        (asked.assign(Größe=[1.0, 2.0, None] + [1.0] * 22), "row 3 of the inputs has nan in column `Größe`"),
        (np.where(np.arange(75).reshape(25, 3) == 10, np.inf, values), "row 4 .* has inf in column `Größe`"),
    ):
        with pytest.raises(InputError, match=message):
            model.predict(wrong)


def test_what_leaves_is_said_before_and_after(federation: Build, commands: Commands, tmp_path: Path) -> None:
    made = sites(federation, standardize="federation", encoding="utf-8")
    for id, (rows, _) in SITES.items():
        write_site(made.directory / f"{id}.csv", rows, "utf-8")
    spec, out = str(made.directory / "federation.yaml"), str(tmp_path / "run")
    checked = commands.run(["-m", "launcher.cli", "check", spec])
    assert "read: columns are separated by `;`\n" in checked.stdout
    assert "leaves the peer: model, column means, column variances" in checked.stdout
    run = commands.run(["-m", "launcher.cli", "run", spec, "--out", out])
    assert run.returncode == 0, run.stdout
    assert "of the data, column means (96 B): of all peers together, before round 1" in run.stdout
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert privacy["of_data"] == {"column means": 96, "column variances": 96}
    assert not privacy["violations"]
    assert not privacy["on_trust"]


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("solo", "`standardize: federation` cannot be: the peers of `solo` are not connected; write `own`"),
        ("dp-fedavg", "`standardize: federation` cannot be: of `dp-fedavg` nothing may leave without noise"),
    ],
)
def test_who_cannot_find_values_together_says_so(
    protocol: str, message: str, commands: Commands, tmp_path: Path
) -> None:
    path = tmp_path / "federation.yaml"
    data = {"name": "csv", "path": "{id}.csv", "standardize": "federation"}
    path.write_text(json.dumps({"protocol": protocol, "data": data}))
    refused = commands.run(["-m", "launcher.cli", "check", str(path), "--peers", "3"], stderr=PIPE)
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
