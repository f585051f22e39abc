"""A MONAI bundle as it is, in real processes and beside MONAI's own trainer and evaluator."""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults.accidents import Accidents, start_and_die
from real_peers import Build, digests
from sklearn.metrics import accuracy_score, roc_auc_score

from launcher.commands.statistics import statistics
from peer.errors import InputError
from peer.learning.export import export_state_dict, load_model
from peer.runtime.in_process import run_in_process
from peer.runtime.runtime import Runtime
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

if not all(map(find_spec, ("monai", "ignite", "nibabel"))):
    pytest.skip("MONAI is missing: pip install -c constraints.txt 'dfl[monai]'", allow_module_level=True)
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(200)]
"""Of MONAI and what it imports, nothing is ours to mend."""

# MONAI's own trainer on the same batches, with the same schedule.
PLAIN = """
from monai.bundle import ConfigParser
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler

def monai(loop):
    config = ConfigParser()
    config.read_config("BUNDLE/configs/train.json")
    config["network"], config["device"] = loop.model, "cpu"
    batches = [[{"image": x, "label": y} for x, y, _ in loop.batches(2)] for _ in range(loop.epochs)]
    class Loader:
        def __iter__(self):
            return iter(batches.pop(0))
        def __len__(self):
            return 5
    SupervisedTrainer(
        device=loop.device,
        max_epochs=loop.epochs,
        train_data_loader=Loader(),
        network=loop.model,
        optimizer=config.get_parsed_content("optimizer"),
        loss_function=config.get_parsed_content("loss"),
        inferer=config.get_parsed_content("train#inferer"),
        train_handlers=[LrScheduleHandler(config.get_parsed_content("lr_scheduler"), print_lr=False)],
    ).run()
"""


class Preloaded(Accidents):
    """MONAI takes longer to import than all else here."""

    preload = (*Accidents.preload, "monai.bundle")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[Preloaded]:
    nursery = Preloaded()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("bundles") / "cubes"
    sys.path.insert(0, str(EXAMPLES))
    import bundle

    bundle.write(folder)
    before = _content(folder)
    yield folder
    sys.path.remove(str(EXAMPLES))
    assert _content(folder) == before, "a bundle is read only"


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def spec(folder: Path, bundle: Path, peers: int = 1, **keys: Any) -> Spec:
    """With the bundle named as seen from the file's folder."""
    folder.mkdir(exist_ok=True)
    task = {"monai": {"bundle": f"../{bundle.name}", "dataset_dir": f"../{bundle.name}/data", **keys.pop("monai", {})}}
    if not (folder.parent / bundle.name).exists():
        shutil.copytree(bundle, folder.parent / bundle.name)
    (folder / "federation.yaml").write_text(json.dumps({"rounds": 2, "protocol": "solo", "task": task} | keys))
    return load_spec(folder / "federation.yaml", peers=peers)


def run(one: Spec, out: Path) -> dict[str, Runtime]:
    return asyncio.run(run_in_process(one, out))


def changed(bundle: Path, to: Path, **ids: Any) -> Path:
    """A copy of the bundle, with other values for some ids of its config."""
    shutil.copytree(bundle, to)
    file = to / "configs" / "train.json"
    content = json.loads(file.read_text())
    for id, value in ids.items():
        *places, last = id.split("__")
        inner = content
        for place in places:
            inner = inner[place]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    file.write_text(json.dumps(content))
    return to


def test_a_killed_peer_ends_with_the_same_bits(federation: Build, bundle: Path) -> None:
    keys = {
        "patience": 60,
        "data": {},
        "task": {"monai": {"bundle": str(bundle), "dataset_dir": str(bundle / "data")}},
        "model": {"head": ["model.2*"]},
    }
    killed = federation({"name": "fedrep", "head_epochs": 1, "extractor_epochs": 1}, 2, **keys)
    start_and_die(killed, {"peer1": "training:2"})
    assert killed.wait(120) == dict.fromkeys(killed.ids, 0), killed.account()
    assert digests(killed.results()) == killed.undisturbed()
    for line in (killed.directory / "peer1" / "audit.jsonl").read_text().splitlines():
        assert not any(entry["head_bytes"] for entry in json.loads(line)["sent"])


def test_monais_own_trainer_gives_the_same_bits_and_its_evaluator_the_same_dice(bundle: Path, tmp_path: Path) -> None:
    from monai.bundle import ConfigParser

    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "plain.py").write_text(PLAIN.replace("BUNDLE", str(bundle)))
    keys = {"protocol": {"name": "solo", "like": {"name": "fedavg", "epochs": 9}}, "rounds": 1}
    ours, plain = (
        run(spec(tmp_path / "ours", bundle, **keys, **loop), tmp_path / out)["peer0"]
        for out, loop in {"out": {}, "plain": {"training": {"loop": "plain:monai"}}}.items()
    )
    assert ours.setup.model.sha256() == plain.setup.model.sha256()

    export_state_dict(tmp_path / "out" / "peer0" / "model.safetensors", tmp_path / "model.pt")
    config = ConfigParser()
    config.read_config(bundle / "configs" / "train.json")
    config["dataset_dir"], config["device"] = str(bundle / "data"), "cpu"
    config["validate"]["dataset"]["progress"] = False
    network = config.get_parsed_content("network_def")
    network.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    evaluator = config.get_parsed_content("validate#evaluator")
    evaluator.run()
    result = json.loads((tmp_path / "out" / "peer0" / "result.json").read_text())
    assert result["figures"]["val_mean_dice"] == pytest.approx(evaluator.state.metrics["val_mean_dice"], abs=1e-6)
    assert result["figures"]["val_mean_dice"] > 0.8


def test_the_schedule_goes_on_from_round_to_round(bundle: Path, tmp_path: Path) -> None:
    sgd = {"_target_": "torch.optim.SGD", "params": "$@network.parameters()", "lr": 0.1}
    falling = {
        "_target_": "torch.optim.lr_scheduler.LambdaLR",
        "optimizer": "@optimizer",
        "lr_lambda": "$lambda n: n < 1",
    }
    copy = changed(bundle, tmp_path / "changed", optimizer=sgd, lr_scheduler=falling)
    keys = {"protocol": {"name": "solo", "like": {"name": "fedavg", "epochs": 1}}}
    one, two = (
        run(spec(tmp_path / "one", copy, rounds=rounds, **keys), tmp_path / f"out{rounds}")["peer0"]
        for rounds in (1, 2)
    )
    assert one.setup.model.sha256() == two.setup.model.sha256(), "the rate is 0 after the first epoch"


def test_an_exported_model_opens_and_answers(bundle: Path, tmp_path: Path) -> None:
    run(spec(tmp_path / "one", bundle, rounds=1, protocol={"name": "solo", "like": "fedavg"}), tmp_path / "out")
    code = {"user_model": "extras.monai_bundle:network", "user_task": "extras.monai_bundle:BundleTask"}
    model = load_model(tmp_path / "out" / "peer0" / "model.safetensors", **code)
    assert model.predict(torch.zeros(1, 1, 24, 20, 28)).shape == (1, 2, 24, 20, 28)


def test_a_site_without_positives_has_no_figure(bundle: Path, tmp_path: Path) -> None:
    task = spec(tmp_path / "one", bundle).task
    outputs = torch.randn(1, 2, 16, 16, 16)
    labels = torch.zeros(2, 1, 16, 16, 16)
    labels[1, :, :4] = 1
    without, found = (task.tally(outputs, one[None]).numpy() for one in labels)
    assert np.isnan(task.judge(without.astype(float))["val_mean_dice"])
    both = np.concatenate([without, found]).astype(float)
    assert task.judge(both) == task.judge(found.astype(float))
    assert 0 < task.judge(both)["val_mean_dice"] < 1


IDS = [
    ({"loss": None}, "train.json: lacks `loss`"),
    ({"network": None, "network_def": None}, "lacks `network_def`"),
    ({"validate__key_metric": None}, "lacks `validate#key_metric`"),
    ({"dataset_dir": None}, "has no `dataset_dir`; say which id it stands for"),
    ({"validate__evaluator__metric_cmp_fn": "$lambda a, b: a < b"}, "write `better: down`"),
]


@pytest.mark.parametrize(("ids", "said"), IDS, ids=[said for _, said in IDS])
def test_a_bundle_that_lacks_something_is_refused(ids: dict[str, Any], said: str, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        spec(tmp_path / "one", changed(bundle, tmp_path / "changed", **ids))


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("dataset_dir", "`dataset_dir` is a key of its own; take it out of `overrides`"),
        ("train#handlers#0#_disabled_", "is within a list; override all of `train#handlers`"),
    ],
)
def test_overrides_that_would_have_no_effect_are_refused(id: str, said: str, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        spec(tmp_path / "one", bundle, monai={"overrides": {id: True}})


SAMPLES = [
    ("train4_label", lambda array: 2 * array, "train4_label.nii.gz: has the label 2, and the bundle"),
    ("test9_image", lambda array: np.stack([array, array], -1), "test9_image.nii.gz: has 2 channels, and the bundle's"),
]


@pytest.mark.parametrize(("name", "change", "said"), SAMPLES, ids=["label", "channels"])
def test_a_file_that_the_network_cannot_take_is_named(
    name: str, change: Any, said: str, bundle: Path, tmp_path: Path
) -> None:
    import nibabel

    copy = changed(bundle, tmp_path / "changed")
    file = copy / "data" / f"{name}.nii.gz"
    array = change(np.asarray(nibabel.load(file).dataobj).copy())
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), file)
    own = spec(tmp_path / "one", copy, monai={"dataset_dir": "../{id}/data"})
    copy.rename(tmp_path / "peer0")
    shutil.copytree(tmp_path / "peer0", copy)
    with pytest.raises(InputError, match=said):
        own.data.of_peer("peer0").load(own.task)


def test_a_volume_of_another_spacing_is_named(bundle: Path, tmp_path: Path) -> None:
    import nibabel

    copy = changed(bundle, tmp_path / "changed")
    one = spec(tmp_path / "one", copy, monai={"spacing": [1, 1, 1]})
    assert len(one.data.load(one.task).train_targets) == 9
    file = copy / "data" / "test9_image.nii.gz"
    array = np.asarray(nibabel.load(file).dataobj).copy()
    nibabel.save(nibabel.Nifti1Image(array, np.diag([1, 1, 2.5, 1])), file)
    with pytest.raises(InputError, match=r"test9_image.nii.gz: the spacing is 1, 1, 2.5, and .* is 1, 1, 1; resample"):
        one.data.load(one.task)


@pytest.mark.parametrize("workers", [0, 1])
def test_statistics_tell_the_spacing_and_the_size_of_the_files(workers: int, bundle: Path, tmp_path: Path) -> None:
    import nibabel

    resampled = {"_target_": "Spacingd", "keys": ["image", "label"], "pixdim": [1, 1, 1], "mode": "nearest"}
    steps = json.loads((bundle / "configs" / "train.json").read_text())["train"]["deterministic_transforms"]
    copy = changed(bundle, tmp_path / "changed", train__deterministic_transforms=[*steps, resampled])
    shutil.rmtree(copy / "data")
    rng, zooms = np.random.default_rng(0), {}
    for site, thick in (("peer0", 2.5), ("peer1", 5.0)):
        place = tmp_path / site / "data"
        place.mkdir(parents=True)
        for number in range(10):
            zooms[site, number] = zoom = (0.7 + 0.2 * (number < 5), 0.8 + 0.01 * number, thick)
            for kind in ("image", "label"):
                array = rng.integers(0, 2, (28, 28, 12)).astype(np.uint8)
                nibabel.save(nibabel.Nifti1Image(array, np.diag([*zoom, 1])), place / f"train{number}_{kind}.nii.gz")
        for kind in ("image", "label"):
            shutil.copy(place / f"train0_{kind}.nii.gz", place / f"test0_{kind}.nii.gz")
    keys = {"monai": {"dataset_dir": "../{id}/data"}, "data": {"workers": workers}, "rounds": 1}
    one = spec(tmp_path / "one", copy, peers=2, protocol={"name": "extras.statistics:Statistics"}, **keys)
    run(one, tmp_path / "out")
    found = {(row["site"], row.get("column")): row for row in statistics(tmp_path / "out")}
    for site in ("peer0", "peer1"):
        known = np.array([zoom for (of, _), zoom in zooms.items() if of == site])
        for at in (0, 2):
            assert found[site, f"axis {at}, spacing"]["mean"] == pytest.approx(known[:, at].mean(), rel=1e-3)
            assert found[site, f"axis {at}, spacing"]["deviation"] == pytest.approx(known[:, at].std(), abs=1e-3)
        assert found[site, "axis 1, spacing"]["mean"] is None, "of few kinds each is rare"
        assert [found[site, f"axis {at}, size"]["mean"] for at in range(3)] == [28, 28, 12], "not of the crops"
        assert found[site, None]["samples"] == 10


METRICS = [
    ({"_target_": "ignite.metrics.Accuracy"}, "needs all voxels of all volumes together"),
    ({"_target_": "MeanDice", "reduction": "none"}, "write `reduction: mean`"),
]


@pytest.mark.parametrize(("metric", "said"), METRICS, ids=[said for _, said in METRICS])
def test_a_metric_that_gives_no_figure_is_refused(
    metric: dict[str, Any], said: str, bundle: Path, tmp_path: Path
) -> None:
    metric["output_transform"] = "$monai.handlers.from_engine(['pred', 'label'])"
    copy = changed(bundle, tmp_path / "changed", validate__key_metric={"dice": metric})
    task = spec(tmp_path / "one", copy).task
    with pytest.raises(InputError, match=said):
        task.judge(task.tally(torch.randn(2, 2, 16, 16, 16), torch.ones(2, 1, 16, 16, 16)).numpy())


def test_another_bundle_at_another_site_is_refused_before_round_1(
    federation: Build, bundle: Path, tmp_path: Path
) -> None:
    places = {"bundle": str(bundle), "dataset_dir": str(bundle / "data")}
    two = federation({"name": "fedavg", "epochs": 1}, 2, patience=5, data={}, task={"monai": places})
    other = changed(bundle, tmp_path / "other", optimizer__lr=0.5)
    theirs = json.loads((two.directory / "federation.yaml").read_text())
    theirs["task"]["monai"]["bundle"] = str(other)
    (two.directory / "other.yaml").write_text(json.dumps(theirs))
    two.configure("peer1", federation="other.yaml")
    two.start()
    codes = two.wait(100)
    assert all(codes.values())
    assert "digest" in two.log("peer0") + two.log("peer1"), two.account()
    assert not two.events("peer0", "training")


def test_a_bundle_that_changed_since_the_start_is_refused(bundle: Path, tmp_path: Path) -> None:
    copy = changed(bundle, tmp_path / "changed")
    one = spec(tmp_path / "one", copy)
    (copy / "scripts").mkdir()
    (copy / "scripts" / "nets.py").write_text("")
    with pytest.raises(InputError, match="differs from the federation's"):
        one.data.load(one.task)


SCRIPT = """
import numpy as np
import torch
from torch import nn

class Tiny(nn.Sequential):
    def __init__(self, in_channels, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(in_channels * 16, num_classes))

def images(seed, count):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    return [{"image": rng.normal(size=(1, 4, 4)).astype("float32") + int(y), "label": int(y)} for y in labels]
"""
CONFIG = """
imports: ["$from scripts.tiny import images"]
bundle_root: .
network_def: {_target_: scripts.tiny.Tiny, in_channels: 1, num_classes: 2}
network: "$@network_def.to(@device)"
device: cuda:0
loss: {_target_: torch.nn.CrossEntropyLoss}
lr: 0.1
optimizer: {_target_: torch.optim.SGD, params: "$@network.parameters()", lr: "@lr"}
train:
  dataset: {_target_: Dataset, data: "$images(0, 60)"}
  dataloader: {_target_: DataLoader, dataset: "@train#dataset", batch_size: 8}
validate:
  dataset: {_target_: Dataset, data: "$images(1, 30)"}
  postprocessing:
    _target_: Compose
    transforms:
      - {_target_: Activationsd, keys: pred, softmax: true}
      - {_target_: AsDiscreted, keys: label, to_onehot: 2}
  key_metric:
    METRIC
"""
TRANSFORM = "output_transform: \"$monai.handlers.from_engine(['pred', 'label'])\""


@pytest.mark.parametrize("metric", ["ROCAUC", "ignite.metrics.Accuracy"])
def test_classification_with_code_of_the_bundles_own(metric: str, tmp_path: Path) -> None:
    """Figures that are made of all samples together are those of scikit-learn."""
    folder = tmp_path / metric.replace(".", "")
    for place in ("configs", "scripts"):
        (folder / place).mkdir(parents=True)
    post = "" if metric == "ROCAUC" else "      - {_target_: AsDiscreted, keys: pred, argmax: true, to_onehot: 2}\n"
    config = CONFIG.replace("METRIC", f"val_{metric[-3:].lower()}: {{_target_: {metric}, {TRANSFORM}}}")
    (folder / "configs" / "train.yaml").write_text(config.replace("  key_metric:", f"{post}  key_metric:"))
    (folder / "scripts" / "tiny.py").write_text(SCRIPT)
    (tmp_path / "federation.yaml").write_text(
        json.dumps({"rounds": 1, "protocol": {"name": "solo", "like": "fedavg"}, "task": {"monai": folder.name}})
    )
    one = load_spec(tmp_path / "federation.yaml", peers=1)
    done = run(one, tmp_path / "out")["peer0"]
    images = sys.modules["scripts.tiny"].images(1, 30)
    x = torch.stack([torch.from_numpy(sample["image"]) for sample in images])
    probabilities = done.setup.model(x).softmax(1)[:, 1].detach().numpy()
    labels = [sample["label"] for sample in images]
    wanted = roc_auc_score(labels, probabilities) if metric == "ROCAUC" else accuracy_score(labels, probabilities > 0.5)
    found = json.loads((tmp_path / "out" / "peer0" / "result.json").read_text())["figures"]
    assert [*found.values()] == pytest.approx([wanted])
