"""What packages bring by entry points: presets, tasks, models, data and protocols, by short names."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli import main
from peer.errors import InputError
from peer.plugins import installed
from peer.runtime.in_process import federate
from peer.spec.blocks import Coded
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

MODULE = '''
"""A package of somebody's."""
import numpy as np
import torch
from peer import Codec, Preset
from peer.learning.tasks import Regression

class Tides(Preset):
    """Heights of the sea. Made up."""
    harbour: str
    days: int = 20
    def blocks(self, folder):
        where = str(folder / self.harbour)
        return {
            "task": {"name": "sea:Heights", "path": where},
            "model": {"name": "sea:line", "options": {"path": where, "width": 4}, "head": ["out.*"]},
            "data": {"name": "sea:heights", "options": {"days": self.days}},
            "training": {"optimiser": {"name": "SGD", "lr": 0.01}},
        }

class Bold(Preset):
    """Wants more than it may."""
    kind: str = "more"
    def blocks(self, folder):
        if self.kind == "list":
            return ["task"]
        if self.kind == "less":
            return {"model": "mlp"}
        return {"task": "regression", "plaintext": True}

class Bare(Preset):
    def blocks(self, folder):
        return {"task": "regression"}

class Heights(Regression):
    """By how much a height is wrong."""
    name: str
    path: str = ""

def heights(days=10):
    x = np.random.default_rng(0).normal(size=(days, 3)).astype("float32")
    return x, x.sum(1)

class Halves(Codec):
    """Half the bytes."""
    loud: bool = False
    def length(self, values):
        return 2 * values
    def encode(self, vector, generator):
        return vector.half().view(torch.uint8)
    def decode(self, content, values):
        return content.view(torch.float16).float()

class line(torch.nn.Module):
    def __init__(self, shape, classes, path="", width=2):
        super().__init__()
        self.mid, self.out = torch.nn.Linear(*shape, width), torch.nn.Linear(width, classes)
    def forward(self, x):
        return self.out(self.mid(x))
'''
POINTS = """
[dfl.tasks]
tides = sea:Tides
heights = sea:Heights
broken = sea:Missing
bold = sea:Bold
bare = sea:Bare
[dfl.models]
line = sea:line
[dfl.codecs]
halves = sea:Halves
[dfl.data]
sea = sea:heights
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    packages = tmp_path / "packages"
    (packages / "sea-1.2.dist-info").mkdir(parents=True)
    (packages / "sea.py").write_text(MODULE)
    (packages / "sea-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sea\nVersion: 1.2\n")
    (packages / "sea-1.2.dist-info" / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "sea", raising=False)
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()


def spec_of(folder: Path, task: str, more: str = "") -> Spec:
    (folder / "f.yaml").write_text(f"rounds: 1\nprotocol: fedrep\ntask: {task}\n{more}")
    return load_spec(folder / "f.yaml", peers=2)


def test_a_preset_stands_for_its_blocks(folder: Path) -> None:
    spec = spec_of(folder, "{tides: oban}")
    assert (spec.task.name, spec.model.name, spec.data.name) == ("sea:Heights", "sea:line", "sea:heights")
    assert spec.task.path == str(folder / "oban")
    assert spec.data.options == {"days": 20}
    federate(folder / "f.yaml", folder / "run", peers=2)
    assert json.loads((folder / "run/peer0/result.json").read_text())["figures"].keys() == {"rmse", "mae", "r2"}


def test_a_codec_by_its_short_name(folder: Path) -> None:
    more = "wire: {kind: codec, name: halves, options: {loud: true}}\n"
    spec = spec_of(folder, "{tides: oban}", more)
    assert isinstance(spec.wire, Coded)
    assert (spec.wire.name, spec.wire.codec.model_dump()) == ("sea:Halves", {"loud": True})
    (folder / "f.yaml").write_text((folder / "f.yaml").read_text().replace("fedrep", "rdfl"))
    federate(folder / "f.yaml", folder / "run", peers=3)
    lines = [json.loads(line) for line in (folder / "run/peer0/audit.jsonl").read_text().splitlines()]
    sent = [entry["bytes"] for line in lines for entry in line["sent"]]
    assert sent == [2 * ((3 * 4 + 4) + (4 + 1))] * 2
    short = spec_of(folder, "{tides: oban}", "wire: {kind: 'sea:Halves', options: {loud: true}}\n")
    assert short.wire == spec.wire
    with pytest.raises(InputError, match=r"f.yaml:4: unknown wire `halfes`; did you mean `halves`"):
        spec_of(folder, "{tides: oban}", more.replace("halves", "halfes"))
    for wrong, said in (("loud: 3", "valid boolean"), ("laud: true", "unknown key `laud`; did you mean `loud`")):
        with pytest.raises(InputError, match=f"f.yaml:4: .*{said}"):
            spec_of(folder, "{tides: oban}", more.replace("loud: true", wrong))


def test_what_the_file_says_counts_more(folder: Path) -> None:
    more = "model: {head: [], options: {width: 8}}\ndata: {seed: 7}\nhold_back: 0.2\n"
    spec = spec_of(folder, "{tides: {harbour: oban, days: 30}}", more)
    assert (spec.model.head, spec.model.options["width"], spec.data.seed) == ((), 8, 7)
    assert spec.data.options == {"days": 30}
    other = spec_of(folder, "{tides: oban}", "model: mlp\n")
    assert (other.model.name, other.model.options) == ("mlp", {})


def test_where_a_preset_lies_is_each_machines_own(folder: Path) -> None:
    (folder / "else").mkdir()
    one, other = spec_of(folder, "{tides: oban}"), spec_of(folder / "else", "{tides: oban}")
    assert one.task != other.task
    assert one.agreement.digests | {"name": ""} == other.agreement.digests | {"name": ""}
    assert spec_of(folder, "{tides: {harbour: oban, days: 30}}").agreement.digest != one.agreement.digest


def test_places_of_own_code_are_taken_from_the_files_folder(folder: Path) -> None:
    spec = spec_of(folder, "{name: heights, path: here}", "model: {name: line, options: {path: ../there}}\ndata: sea\n")
    assert (spec.task.name, spec.model.name, spec.data.name) == ("sea:Heights", "sea:line", "sea:heights")
    assert spec.task.path == str(folder / "here")
    assert Path(spec.model.options["path"]).resolve() == folder.parent / "there"
    assert spec_of(folder, "{name: heights, path: 's3://x/y'}", "data: sea\n").task.path == "s3://x/y"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("{tide: oban}", "f.yaml:3: `task` wants a `name`, or one of what is installed; did you mean `tides`?"),
        ("{tides: {harbor: oban}}", "f.yaml:3: unknown key `harbor`; did you mean `harbour`?"),
        ("{tides: {}}", "f.yaml:3: `harbour` is missing"),
        ("{tides: {harbour: oban, days: many}}", "f.yaml:3: `days`"),
        ("{heights: 3}", "f.yaml:3: write `task: heights`, or `task: {name: heights, ...}`"),
        ("tides", "f.yaml:3: `tides` takes settings of its own; write `task: {tides: ...}`"),
        ("{broken: 3}", "the module `sea`"),
        ("{tides: }", "f.yaml:3: `tides` is empty; write its settings there"),
        ("{tides: oban, dice: 1}", "f.yaml:3: `task` takes `tides` alone; leave out `dice`"),
        ("{bold: more}", "f.yaml:3: `bold` makes `plaintext`, against the rules of presets"),
        ("{bold: less}", "f.yaml:3: `bold` does not make `task`, against the rules of presets"),
        ("{bold: list}", "f.yaml:3: `bold` fails: TypeError"),
        ("{bare: }", "f.yaml:3: `bare` is empty"),
        ("height", "unknown task `height`; did you mean `heights`?"),
    ],
)
def test_mistakes_are_told_in_a_sentence(folder: Path, task: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        spec_of(folder, task)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_tasks_are_listed_with_who_brings_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--json"]) == 0
    told = {(one["kind"], one["name"]): one for one in json.loads(capsys.readouterr().out)}
    assert told["task", "tides"] == {"name": "tides", "kind": "task", "from": "sea 1.2", "about": "Heights of the sea"}
    assert told["task", "segmentation"]["from"] == "dfl"
    assert told["data", "sea"]["from"] == told["model", "line"]["from"] == "sea 1.2"
    assert told["task", "broken"]["about"].startswith("cannot be used: `sea:Missing`")
    assert main(["tasks"]) == 0
