"""`dfl-launch new federation`: what it takes for the label, and that what it writes passes `check` and runs."""

from pathlib import Path
from random import Random

import pytest

from launcher.cli import main
from peer.spec.federation import Spec
from peer.spec.loading import load_peer, load_spec


def table(path: Path, header: str = "age,pressure,diagnosis", last: str = "class") -> Path:
    random = Random(0)
    ends = {
        "class": lambda: random.choice(["no", "yes"]),
        "whole": lambda: random.randrange(2),
        "codes": lambda: random.choice([100, 200, -1]),
        "texts": lambda: f"note {random.random()}",
        "one": lambda: 7,
        "infinite": lambda: random.choice(["inf", 1, 2]),
    }
    end = ends.get(last, lambda: f"{random.gauss(0, 1):.3f}")
    rows = [f"{random.gauss(60, 9):.1f},{random.gauss(130, 9):.0f},{end()}" for _ in range(120)]
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return path


def made(place: Path, *words: str) -> Spec:
    assert main(["new", "federation", str(place / "patients.csv"), "--out", str(place / "new"), *words]) == 0
    return load_spec(place / "new" / "federation.yaml")


def test_it_passes_check_and_each_site_has_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "patients.csv")
    spec = made(tmp_path)
    assert "predicts `diagnosis`" in (said := capsys.readouterr().out)
    assert "site2" in said, "what `check` says"
    assert (spec.name, spec.ids, spec.protocol.name) == ("patients", ("site0", "site1", "site2"), "fibfl")
    assert spec.data.model_dump()["class_names"] == ("no", "yes")
    assert spec.data.path.resolve() == tmp_path / "patients.csv"  # type: ignore[attr-defined]
    for id in spec.ids:
        assert load_peer(tmp_path / "new" / f"{id}.yaml")[0].id == id


def test_numbers_that_name_classes(tmp_path: Path) -> None:
    table(tmp_path / "patients.csv", last="codes")
    spec = made(tmp_path)
    assert spec.data.model_dump()["class_names"] == ("-1", "100", "200")
    assert spec.data.model_dump()["standardize"] == "federation"


def test_where_check_refuses_it_says_where_to_mend_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "patients.csv")
    out = tmp_path / "new"
    assert main(["new", "federation", str(tmp_path / "patients.csv"), "--out", str(out), "--label", "age"]) == 2
    said = capsys.readouterr().err
    assert "column 'diagnosis' holds '" in said
    assert f"keys go into `data` of {out}/federation.yaml; then dfl-launch check {out}/federation.yaml" in said


@pytest.mark.parametrize(
    ("header", "last", "words", "learnt"),
    [
        ("age,pressure,diagnosis", "class", [], ("diagnosis", "classification")),
        ("age,pressure,ill", "class", [], ("ill", "classification")),
        ("age,pressure,Outcome", "whole", [], ("Outcome", "classification")),
        ("age,pressure,y", "numbers", [], ("y", "regression")),
        ("age,y,last", "whole", ["--label", "last"], ("last", "classification")),
        ("age,pressure,last", "numbers", ["--label", "age"], ("age", "regression")),
    ],
)
def test_what_is_predicted(header: str, last: str, words: list[str], learnt: tuple[str, str], tmp_path: Path) -> None:
    table(tmp_path / "patients.csv", header, last)
    spec = made(tmp_path, "--peers", "2", *words)
    assert (spec.data.model_dump()["label"], spec.task.name) == learnt
    assert spec.protocol.name == "fedrep"


@pytest.mark.parametrize(
    ("header", "last", "words", "said"),
    [
        (
            "age,pressure,last",
            "numbers",
            [],
            "to be predicted? Give --label, one of age, pressure, last",
        ),
        ("y,pressure,diagnosis", "class", [], "which column is to be predicted?"),
        ("age,pressure,diagnosis", "class", ["--label", "ill"], "has no such column; it has age, pressure, diagnosis"),
        ("age,pressure,diagnosis", "texts", [], "column 'diagnosis' has 120 different texts"),
        ("age,pressure,diagnosis", "one", [], "column 'diagnosis' has fewer than two different values"),
        ("age,pressure,diagnosis", "infinite", [], "holds neither texts nor finite numbers"),
        ("age,pressure,diagnosis", "class", ["--peers", "0"], "--peers 0: a federation has 2 peers or more"),
    ],
)
def test_what_is_not_clear_writes_nothing(
    header: str, last: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path / "patients.csv", header, last)
    out = tmp_path / "new"
    assert main(["new", "federation", str(tmp_path / "patients.csv"), "--out", str(out), *words]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "patients.csv")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "site1.yaml").write_text("mine", encoding="utf-8")
    assert main(["new", "federation", str(tmp_path / "patients.csv"), "--out", str(tmp_path / "new")]) == 2
    assert "site1.yaml is there already, and nothing was written" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["site1.yaml"]
