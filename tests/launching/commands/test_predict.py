"""`dfl-launch predict`: the answers that the peer's model gives, of samples as people have them."""

import csv
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from launcher.cli import main
from peer import load_model
from peer.errors import InputError
from peer.learning.data.samples import Names, Standardisation
from peer.learning.export import read_header, save_model
from peer.learning.model.layout import Patterned
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.tasks import Multilabel, Regression

OWN = """
import torch
from torch import nn

from peer import Figure, Task
from peer.learning.tasks import Segmentation


class Slices(Segmentation):
    name: str
    evaluation_batch = 1

    def infer(self, forward, inputs):
        return forward(inputs)


class Shares(Task):
    figures = (Figure("hits"),)
    has_classes = True
    said: str

    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

    def tally(self, outputs, targets):
        return (outputs.argmax(1) == targets)[:, None]

    def answers(self, outputs):
        return {"classes": outputs.argmax(1), "shares": outputs.softmax(1), "list": outputs.tolist()}[self.said]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(1, 3, 1)

    def forward(self, x):
        return self.head(x)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, left, right):
        return self.head(left + right)


class Reading(Both):
    class_names = ["well", "ill"]

    def forward(self, x):
        return self.head(x)

    def read_inputs(self, path, scale=1):
        return torch.tensor([[scale * len(line), 1.0] for line in path.read_text().split()])


def net(shape, classes):
    return Net()


def both(shape, classes):
    return Both()


def reading(shape, classes):
    return Reading()
"""


def of_a_table(folder: Path) -> Path:
    """A peer whose columns are standardised, and one imputed."""
    model = build("mlp", Example.zeros((4,), 2), seed=5)
    model.names = Names.imputing(["age", "bmi", "dose"], {"bmi": "category"})
    model.names = Names(model.names.columns, ("well", "ill"), model.names.rules)
    imputed = torch.tensor([torch.nan, 3.0, torch.nan, torch.nan])
    model.standard = Standardisation(torch.arange(4.0), torch.full((4,), 2.0), imputed)
    folder.mkdir()
    save_model(model, folder / "model.safetensors")
    return folder


def answered(peer: Path, samples: Path, *more: str) -> list[dict[str, str]]:
    target = peer.parent / "answers.csv"
    target.unlink(missing_ok=True)
    assert main(["predict", str(peer), str(samples), "--to", str(target), *more]) == 0
    with target.open() as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize("kind", ["comma", "german", "parquet"])
def test_a_table_by_its_names_and_what_stands_beside(tmp_path: Path, kind: str) -> None:
    peer = of_a_table(tmp_path / "north")
    frame = pandas.DataFrame(
        {"patient": ["00123", "=1+1", "-7"], "dose": [0.5, 1.5, 2.5], "age": [40, 50, 60], "bmi": [22.5, None, 31.25]}
    )
    path, more = tmp_path / "new.csv", list[str]()
    if kind == "parquet":
        frame.to_parquet(path := tmp_path / "new.parquet")
    else:
        frame.to_csv(path, index=False, sep=";" if kind == "german" else ",", decimal="," if kind == "german" else ".")
        more = ["--option", "decimal=,"] if kind == "german" else []
    rows = answered(peer, path, *more)
    assert main(["predict", str(peer), str(path), "--to", str(path)]) == 2, "what is there stays"
    model = load_model(peer / "model.safetensors")
    features = frame[["age", "bmi", "dose"]]
    shares = model.outputs(features).double().softmax(1).numpy()
    assert [row["patient"] for row in rows] == ["00123", "'=1+1", "-7"], "as written, but no formula"
    assert [row["answer"] for row in rows] == model.predict(features, names=True)
    told = [[float(row["probability well"]), float(row["probability ill"])] for row in rows]
    np.testing.assert_allclose(told, shares, rtol=1e-5)


def test_arrays_and_numbers_for_answers(tmp_path: Path) -> None:
    model = build("mlp", Example.zeros((3,), 2, Regression(name="regression")), seed=1)
    (tmp_path / "peer").mkdir()
    save_model(model, tmp_path / "peer" / "model.safetensors")
    x = np.random.default_rng(0).normal(size=(600, 3))
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    expected = load_model(tmp_path / "peer" / "model.safetensors").predict(x).numpy()
    for name in ("x.npy", "x.npz"):
        rows = answered(tmp_path / "peer", tmp_path / name)
        np.testing.assert_allclose(
            [[float(row["answer 0"]), float(row["answer 1"])] for row in rows], expected, rtol=1e-6
        )
        assert rows[599]["sample"] == "599"


def test_labels_have_their_names(tmp_path: Path) -> None:
    model = build("mlp", Example.zeros((3,), 3, Multilabel(name="multilabel")), seed=1)
    model.names = Names(classes=("fever", "cough", "rash"))
    (tmp_path / "peer").mkdir()
    save_model(model, tmp_path / "peer" / "model.safetensors")
    x = np.random.default_rng(0).normal(size=(9, 3))
    np.save(tmp_path / "x.npy", x)
    known = load_model(tmp_path / "peer" / "model.safetensors")
    rows, hold = answered(tmp_path / "peer", tmp_path / "x.npy"), known.predict(x).tolist()
    assert [[row[f"answer {name}"] for name in model.class_names] for row in rows] == [[*map(str, row)] for row in hold]
    said = known.predict(x, names=True)
    assert said == [[name for name, one in zip(model.class_names, row, strict=True) if one] for row in hold]
    assert known.predict(x[0], names=True) == said[0]


def test_images_are_scaled_as_in_training(tmp_path: Path) -> None:
    model = build("cnn-small", Example.zeros((1, 8, 8), 3), seed=2)
    (tmp_path / "peer").mkdir()
    (tmp_path / "images").mkdir()
    save_model(model, tmp_path / "peer" / "model.safetensors")
    pixels = np.random.default_rng(1).integers(0, 256, (2, 8, 8), dtype=np.uint8)
    for name, one in zip(("b.png", "a.png"), pixels, strict=True):
        Image.fromarray(one).save(tmp_path / "images" / name)
    (tmp_path / "images" / "notes.txt").write_text("")
    rows = answered(tmp_path / "peer", tmp_path / "images")
    expected = load_model(tmp_path / "peer" / "model.safetensors").predict(pixels[::-1, None] / np.float32(255))
    assert [(row["sample"], int(row["answer"])) for row in rows] == [
        *zip(("a.png", "b.png"), expected.tolist(), strict=True)
    ]
    assert answered(tmp_path / "peer", tmp_path / "images" / "b.png")[0]["answer"] == rows[1]["answer"]


def test_arrays_of_pixels_are_scaled_as_in_training(tmp_path: Path) -> None:
    model = build("cnn-small", Example.zeros((3, 8, 8), 3), seed=2)
    (tmp_path / "peer").mkdir()
    (tmp_path / "each").mkdir()
    save_model(model, tmp_path / "peer" / "model.safetensors")
    pixels = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    np.save(tmp_path / "last.npy", pixels)
    np.savez(tmp_path / "first.npz", x=pixels.transpose(0, 3, 1, 2))
    np.save(tmp_path / "each" / "a.npy", pixels[0])
    np.save(tmp_path / "each" / "b.npy", pixels[1])
    shares = model.outputs(pixels.transpose(0, 3, 1, 2) / np.float32(255)).double().softmax(1).numpy()
    for samples in ("last.npy", "first.npz", "each"):
        rows = answered(tmp_path / "peer", tmp_path / samples)
        told = [[float(row[f"probability {name}"]) for name in range(3)] for row in rows]
        np.testing.assert_allclose(told, shares, rtol=1e-5)


def test_numbers_of_a_table_are_no_pixels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 9, (5, 3))
    peer = of_a_table(tmp_path / "peer")
    for name, kind in (("numbers", np.float32), ("bytes", np.uint8)):
        np.save(tmp_path / f"{name}.npy", x.astype(kind))
    assert answered(peer, tmp_path / "bytes.npy") == answered(peer, tmp_path / "numbers.npy")


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user's own code lies, which this process knows as well."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_predicting.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "code")
    (tmp_path / "peer").mkdir()
    return tmp_path / "code"


def test_samples_of_differing_sizes_are_answered_by_file(code: Path, tmp_path: Path) -> None:
    from own_predicting import Net, Slices  # type: ignore[import-not-found]

    example = Example(torch.zeros(2, 1, 4, 4), Slices(name="own_predicting:Slices"), 3, torch.zeros(2, 4, 4).long())
    settings = ModelSettings(name="own_predicting:net", head=("head.*",))
    save_model(
        Model(Patterned(Net(), ("head.*",)), settings=settings, example=example),
        tmp_path / "peer" / "model.safetensors",
    )
    (tmp_path / "volumes").mkdir()
    sizes = {"one.npy": (1, 3, 5), "two.npy": (1, 7, 2)}
    for name, size in sizes.items():
        np.save(tmp_path / "volumes" / name, np.random.default_rng(3).normal(size=size))
    target = tmp_path / "answers.npz"
    line = ["predict", str(tmp_path / "peer"), str(tmp_path / "volumes"), "--to", str(target)]
    assert main([*line, "--code", str(code)]) == 0
    model = load_model(
        tmp_path / "peer" / "model.safetensors", user_model="own_predicting:net", user_task="own_predicting:Slices"
    )
    with np.load(target) as found:
        assert {*found} == {*sizes}
        for name, size in sizes.items():
            assert found[name].shape == size[1:]
            asked = np.load(tmp_path / "volumes" / name)[None]
            np.testing.assert_array_equal(found[name], model.predict(asked)[0])


def test_several_inputs_by_name(code: Path, tmp_path: Path) -> None:
    from own_predicting import Both

    example = Example({"left": torch.zeros(2, 2), "right": torch.zeros(2, 2)}, Regression(name="regression"), 2)
    settings = ModelSettings(name="own_predicting:both", head=("head.*",))
    save_model(
        Model(Patterned(Both(), ("head.*",)), settings=settings, example=example),
        tmp_path / "peer" / "model.safetensors",
    )
    arrays = {name: np.random.default_rng(len(name)).normal(size=(300, 2)) for name in ("right", "left")}
    np.savez(tmp_path / "x.npz", **arrays)
    rows = answered(tmp_path / "peer", tmp_path / "x.npz", "--code", str(code))
    expected = load_model(tmp_path / "peer" / "model.safetensors", user_model="own_predicting:both").predict(arrays)
    np.testing.assert_allclose([float(row["answer 1"]) for row in rows], expected[:, 1], rtol=1e-6)


def test_a_model_that_reads_its_samples_itself(code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from own_predicting import Reading

    settings = ModelSettings(name="own_predicting:reading", head=("head.*",))
    made = Model(Patterned(Reading(), ("head.*",)), settings=settings, example=Example.zeros((2,), 2))
    save_model(made, tmp_path / "peer" / "model.safetensors")
    (tmp_path / "notes.txt").write_text("fever none")
    more = ("--code", str(code), "--option", "scale=2")
    rows = answered(tmp_path / "peer", tmp_path / "notes.txt", *more)
    model = load_model(tmp_path / "peer" / "model.safetensors", user_model="own_predicting:reading")
    x = np.array([[10.0, 1.0], [8.0, 1.0]])
    assert [row["answer"] for row in rows] == [["well", "ill"][one] for one in model.predict(x).tolist()]
    assert [row["answer"] for row in rows] == model.predict(x, names=True)
    assert read_header(tmp_path / "peer" / "model.safetensors").class_names == ("well", "ill")
    line = ["predict", str(tmp_path / "peer"), str(tmp_path / "notes.txt"), "--to", str(tmp_path / "a.csv")]
    assert main([*line, "--code", str(code), "--option", "scales=2"]) == 2
    assert "unexpected keyword argument 'scales'" in capsys.readouterr().err
    assert main(line) == 2
    assert "needs code, own_predicting:reading; if you trust it" in capsys.readouterr().err


def test_answers_of_a_task_of_one_s_own(code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from own_predicting import Shares

    x = np.random.default_rng(0).normal(size=(3, 2))
    np.save(tmp_path / "x.npy", x)
    for said in ("classes", "shares", "list"):
        example = Example(torch.zeros(2, 2), Shares(name="own_predicting:Shares", said=said), 2)
        made = build("mlp", example, seed=0)
        made.names = Names((), ("well", "ill"), {})
        (tmp_path / said).mkdir()
        save_model(made, tmp_path / said / "model.safetensors")
    more = ("--code", str(code))
    model = load_model(tmp_path / "classes" / "model.safetensors", user_task="own_predicting:Shares")
    rows = answered(tmp_path / "classes", tmp_path / "x.npy", *more)
    assert [*rows[0]] == ["sample", "answer"]  # whether its outputs are logits, only the task knows
    assert [row["answer"] for row in rows] == model.predict(x, names=True)
    rows = answered(tmp_path / "shares", tmp_path / "x.npy", *more)
    assert [*rows[0]] == ["sample", "answer 0", "answer 1"]
    model = load_model(tmp_path / "shares" / "model.safetensors", user_task="own_predicting:Shares")
    np.testing.assert_allclose([float(row["answer 1"]) for row in rows], model.predict(x)[:, 1], rtol=1e-6)
    with pytest.raises(InputError, match="does not answer with class numbers; leave out `names`"):
        model.predict(x, names=True)
    line = ["predict", str(tmp_path / "list"), str(tmp_path / "x.npy"), "--to", str(tmp_path / "list.csv"), *more]
    assert main(line) == 2
    assert "its `answers` must return a tensor (3, ...), an answer for each sample" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("samples", "content", "more", "told"),
    [
        ("none.csv", None, [], "there is no file"),
        ("new.csv", "age,bmi\n1,2\n", [], "there is no column `dose`, which the model goes by"),
        ("new.csv", "age,bmi,dose\n1,2,x\n", [], "new.csv: column 'dose' holds 'x' in line 2, which is not a number"),
        (
            "new.csv",
            "age,bmi,dose\n1,2,3\n1,2,3\n1,2,'4,5'\n".replace("'", chr(34)),
            [],
            "in line 4, which is not a number; write `decimal",
        ),
        ("new.csv", "age,bmi,dose\n1,2,1e38\n", [], "has no answer to row 1 of the inputs"),
        ("new.csv", "age,bmi,dose,answer\n1,2,3,4\n", [], "have a column `answer` of their own; rename it"),
        ("new.csv", "age,bmi,dose\n1,2,3\n", ["--option", "path=/etc/passwd"], "--option path: the file is"),
        ("new.csv", "age,bmi,dose\n1,2,3\n", ["--code", "nowhere"], "--code nowhere: there is no such directory"),
        ("new.csv", "age,bmi,dose\n1,2,3\n", ["--to", "no/where.csv"], "there is no directory no"),
        ("new.csv", "age,bmi,dose\n1,2,\n", [], "row 1 of the inputs has nan in column `dose`"),
        ("new.csv", "age,bmi,dose\n", [], "has no samples"),
        (
            "new.csv",
            "age,bmi,dose\n1,2,3\n",
            ["--option", "decimals=."],
            "unknown key `decimals`; did you mean `decimal`?",
        ),
        ("new.npy", "no array", [], "cannot be read"),
        ("new.npy", "no array", ["--option", "a=1"], "is read without options"),
        ("new.csv", "age,bmi,dose\n1,2,3\n", ["--to", "answers.txt"], "choose a name that ends with .csv or .npz"),
        ("new.png", "no image", [], "and images are square; give arrays"),
    ],
)
def test_what_cannot_be_answered(
    tmp_path: Path, samples: str, content: str | None, more: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, path = of_a_table(tmp_path / "north"), tmp_path / samples
    if content is not None:
        path.write_text(content)
    assert main(["predict", str(peer), str(path), "--to", str(tmp_path / "answers.csv"), *more]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "answers.csv").exists()
