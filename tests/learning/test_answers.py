"""What a model file says of its data, and what a saved model answers: in labels, to columns by their names."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from peer import load_model
from peer.errors import InputError
from peer.learning.data.samples import Names, Standardisation
from peer.learning.export import save_model
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build

NAMES = Names(("age", "weight"), ("healthy", "ill", "unknown"))


IMPUTING = Names(("age", "weight", "age missing"), NAMES.classes, {"age": "category"})


def model(names: Names = NAMES) -> Model:
    made = build("mlp", Example.zeros((max(2, len(names.columns)),), 3), seed=5)
    made.names = names
    made.standard = Standardisation(torch.tensor([40.0, 7e7]), torch.tensor([12.5, 0.1]))
    if names.rules:
        moments = torch.tensor([40.0, 7e7, 0.2]), torch.tensor([12.5, 0.1, 0.4])
        made.standard = Standardisation(*moments, torch.tensor([38.0, torch.nan, torch.nan]))
    return made


def saved(path: Path, names: Names = NAMES) -> Model:
    save_model(model(names), path)
    return load_model(path)


def test_names_and_values_come_back_and_count_in_no_digest(tmp_path: Path) -> None:
    loaded = saved(tmp_path / "m")
    assert loaded.names == NAMES
    assert loaded.standard
    assert torch.equal(loaded.standard.vector, torch.tensor([40.0, 7e7, 12.5, 0.1]))
    assert loaded.sha256() == model().sha256()
    assert load_file(tmp_path / "m").keys() == loaded.state().keys()


def test_inputs_are_standardised_before(tmp_path: Path) -> None:
    loaded, x = saved(tmp_path / "m"), torch.tensor([[50.0, 7e7], [30.0, 7e7 + 8]])
    plain = loaded.forward((x - torch.tensor([40.0, 7e7])) / torch.tensor([12.5, 0.1])).argmax(1)
    assert torch.equal(loaded.predict(x), plain)
    assert loaded.predict(x, names=True) == [NAMES.classes[number] for number in plain.tolist()]
    assert loaded.predict(x[0], names=True) == NAMES.classes[int(plain[0])]


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    import pandas

    loaded = saved(tmp_path / "m")
    frame = pandas.DataFrame({"weight": [7e7, 7e7 + 8], "age": [50, 30]})
    assert torch.equal(loaded.predict(frame), loaded.predict(frame[["age", "weight"]].to_numpy()))
    unnamed = saved(tmp_path / "unnamed", replace(NAMES, columns=()))
    assert torch.equal(unnamed.predict(frame[["age", "weight"]]), loaded.predict(frame))
    spaced = saved(tmp_path / "spaced", replace(NAMES, columns=("age ", "weight")))
    assert torch.equal(spaced.predict(frame.rename(columns={"age": "age "})), loaded.predict(frame))
    for wrong, message in (
        (frame.assign(id=1), "the model knows no column `id`; leave it out, it goes by age, weight"),
        (frame[["age"]], "there is no column `weight`, which the model goes by"),
        (frame.assign(age=["old", "young"]), r"column `age` holds something other than numbers .* convert it"),
        (frame.assign(age=[50, None]), "row 2 of the inputs has nan in column `age`; fill it in"),
    ):
        with pytest.raises(InputError, match=message):
            loaded.predict(wrong)


def test_gaps_are_filled_where_the_rules_allow_them(tmp_path: Path) -> None:
    import pandas

    loaded = saved(tmp_path / "m", IMPUTING)
    assert loaded.names == IMPUTING
    frame = pandas.DataFrame({"weight": [7e7, 7e7 + 8], "age": [50, None]})
    filled = torch.tensor([[50, 7e7, 0], [38, 7e7 + 8, 1]])
    z = (filled - torch.tensor([40.0, 7e7, 0.2])) / torch.tensor([12.5, 0.1, 0.4])
    wanted = loaded.forward(z).argmax(1)
    assert torch.equal(loaded.predict(frame), wanted)
    assert torch.equal(loaded.predict(frame.assign(age=pandas.Series([50, pandas.NA], dtype=object))), wanted)
    rows = np.array([[50, 7e7], [np.nan, 7e7 + 8]])
    assert torch.equal(loaded.predict(rows), wanted)
    assert torch.equal(loaded.predict(rows[1]), wanted[1])
    for wrong, message in (
        (frame.assign(weight=[1, None]), "row 2 of the inputs has nan in column `weight`"),
        (frame.assign(age=[1, np.inf]), "row 2 of the inputs has inf in column `age`"),
        (frame.assign(**{"age missing": 0}), "the model knows no column `age missing`; .* goes by age, weight"),
        (filled, r"model mlp takes \(n, 2\), not \(2, 3\)"),
    ):
        with pytest.raises(InputError, match=message):
            loaded.predict(wrong)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([[1, 2], [3, np.nan]]), "row 2 of the inputs has nan in column `weight`"),
        (np.array([np.inf, 2]), "row 1 of the inputs has inf in column `age`"),
        (torch.tensor([[1, 2], [-torch.inf, 3]]), "row 2 of the inputs has -inf in column `age`"),
        (np.array([[1e300, 2]]), "row 1 of the inputs has inf in column `age`"),
    ],
)
def test_what_is_no_finite_number_is_refused(x: Any, message: str, tmp_path: Path) -> None:
    with np.errstate(over="ignore"), pytest.raises(InputError, match=message):
        saved(tmp_path / "m").predict(x)


def test_a_pixel_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="row 2 of the inputs has nan; fill it in"):
        build("mlp", Example.zeros((1, 2, 2), 3), seed=5).predict(
            torch.stack([torch.zeros(1, 2, 2), torch.full((1, 2, 2), torch.nan)])
        )


def test_numbers_have_no_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model mlp knows no names of classes; leave out `names`"):
        saved(tmp_path / "m", Names()).predict(torch.zeros(2, 2), names=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("imputed", {"weight": {"rule": "category", "value": 1.0}}),
        ("imputed", {"height": {"rule": "mean", "value": 1.0}}),
        ("imputed", {"age": {"rule": "guess", "value": 1.0}}),
        ("imputed", {"age": {"rule": "category"}}),
        ("imputed", {"age": {"rule": "category", "value": None}}),
        ("standard", None),
        ("columns", ["age", "weight", "age gone"]),
    ],
)
def test_a_file_whose_imputed_columns_are_others_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    refused(IMPUTING, key, value, tmp_path / "m")


@pytest.mark.parametrize(
    ("of_data", "own", "known"),
    [
        ((), ["a", "b", "c"], ("a", "b", "c")),
        (("0", "1", "2"), ["a", "b", "c"], ("a", "b", "c")),
        (NAMES.classes, ["a", "b", "c"], NAMES.classes),
        ((), ["a", "b"], ()),
        ((), ["a", "a", "b"], ()),
        ((), None, ()),
    ],
)
def test_a_module_names_each_class_where_the_data_do_not(
    of_data: tuple[str, ...], own: Any, known: tuple[str, ...]
) -> None:
    made = model(replace(NAMES, classes=of_data))
    made.module.class_names = own
    assert made.class_names == known


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("columns", ["age"]),
        ("columns", "age"),
        ("class_names", ["healthy"]),
        ("standard", {"means": [1.0], "deviations": [1.0]}),
        ("standard", {"means": [1.0, 2.0], "deviations": [1.0, 0.0]}),
        ("standard", {"means": [1.0, 2.0]}),
        ("shape", [1, 2]),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    refused(NAMES, key, value, tmp_path / "m")


def refused(names: Names, key: str, value: Any, path: Path) -> None:
    save_model(model(names), path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata() | {key: json.dumps(value)}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, path, metadata)
    with pytest.raises(InputError, match="does not say which model it holds"):
        load_model(path)
