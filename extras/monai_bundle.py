"""Train a MONAI bundle as it is: `task: {monai: FOLDER}`.

`Bundle` turns the folder into blocks of a federation's file, by its config alone and without MONAI. The functions and
the task that these blocks name stand below it, in the order in which a peer needs them: data, network, training,
evaluation. Each takes what it needs from the config by its usual id, made by MONAI's own parser (`Opened`). Nothing
else of the bundle runs: no `initialize`, trainer, evaluator or handler.
"""

import hashlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue, PositiveFloat
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from torch import Tensor, nn
from torch.utils.data import Dataset

from peer import Figure, Preset, Task
from peer.errors import InputError, suggest
from peer.learning.randomness import draw_from, sample_streams
from peer.learning.vision import torchvision
from peer.plugins import import_from, user_input_errors
from peer.settings import PeerPath

CONFIGS = ("configs/train.json", "configs/train.yaml", "configs/train.yml")
NEEDED = ("network_def", "loss", "optimizer", "train#dataset", "validate#dataset", "validate#key_metric")
"""Ids without which no bundle can be trained; `network` will do for the first."""
MOST_READ = 32
"""Samples of a data set that are read to be checked before the start; all are, where they lie in memory."""
MOST_KEPT = 4096
"""Numbers a sample that are kept for a metric."""


class Bundle(Preset):
    """A MONAI bundle: `task: {monai: FOLDER}`, or `task: {monai: {bundle: FOLDER, ...}}`."""

    bundle: Path
    """The bundle's folder."""
    config: str | None = None
    """Its training config; default: `configs/train.json` or `.yaml`."""
    dataset_dir: PeerPath | None = None
    """In place of the config's `dataset_dir`; `{id}` in it stands for the peer's id."""
    overrides: dict[str, JsonValue] = Field(default_factory=dict)
    """Values for other ids of the config, such as `train#dataset#cache_rate`."""
    better: Literal["up", "down"] | None = None
    """Whether more or less of the key metric is better; default: up."""
    spacing: tuple[PositiveFloat, ...] | None = None
    """The distance of voxels along each axis that images must have, after deterministic transforms."""

    def blocks(self, folder: Path) -> Mapping[str, Any]:
        path = (folder / self.bundle.expanduser()).resolve()
        tried = (self.config, f"configs/{self.config}") if self.config else CONFIGS
        if (config := next((one for one in tried if (path / one).is_file()), None)) is None:
            raise InputError(f"there is no {' or '.join(str(path / one) for one in tried)}; give a bundle's folder")
        content = _read(path / config)
        for id in NEEDED:
            if _look(content, id) is None and (id != "network_def" or "network" not in content):
                raise InputError(f"{path / config}: lacks `{id}`, which `task: {{monai: ...}}` needs; add it there")
        if "dataset_dir" in self.overrides:
            raise InputError(f"{path / config}: `dataset_dir` is a key of its own; take it out of `overrides`")
        if inner := [id for id in self.overrides if id.startswith("train#handlers#") and "#lr_scheduler" not in id]:
            raise InputError(f"{path / config}: `{inner[0]}` is within a list; override all of `train#handlers`")
        for id in self.overrides:
            if _look(content, id.rpartition("#")[0] or id) is None:
                raise InputError(f"{path / config}: has no `{id}` to override; {suggest(id, [*content])}")
        usual = content.get("dataset_dir")
        if self.dataset_dir and usual is None and "@dataset_dir" not in json.dumps(self.overrides):
            raise InputError(
                f"{path / config}: has no `dataset_dir`; say which id it stands for, as in "
                'overrides: {data_file_base_dir: "@dataset_dir"}'
            )
        if _look(content, "validate#evaluator#metric_cmp_fn") is not None and self.better is None:
            raise InputError(
                f"{path / config}: `metric_cmp_fn` compares the key metric in its own way; write `better: down`, or up"
            )
        bundle = {"path": str(path), "config": config, "digest": _digest(path, config), "overrides": self.overrides}
        options = bundle | ({"spacing": [*self.spacing]} if self.spacing else {})
        data = {"name": f"{__name__}:data_sets", "options": options, "collate": f"{__name__}:collate"}
        if self.dataset_dir:
            data["root"] = str(folder / self.dataset_dir.expanduser())
        elif isinstance(usual, str) and not usual.startswith(("$", "@", "%")):
            data["root"] = str(path / usual)
        metric = self.overrides.get("validate#key_metric", _look(content, "validate#key_metric"))
        if not isinstance(metric, dict) or not metric:
            raise InputError(f"{path / config}: `validate#key_metric` names no metric; write {{name: metric}} there")
        figure = {"figure": next(iter(metric)), "better": self.better or "up"}
        return {
            "task": {"name": f"{__name__}:BundleTask", **bundle, **figure},
            "model": {"name": f"{__name__}:network", "options": bundle, "head": []},
            "data": data,
            "training": {"loop": {"name": f"{__name__}:train", **bundle}},
        }


def _read(file: Path) -> dict[str, Any]:
    """A config as it stands in its file; InputError for what is none."""
    try:
        text = file.read_text("utf-8")
        content = json.loads(text) if file.suffix == ".json" else YAML(typ="safe", pure=True).load(text)
    except (OSError, ValueError, YAMLError) as error:
        raise InputError(f"{file}: cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise InputError(f"{file}: is not a bundle's config; give a bundle's training config")
    return content


def _look(content: Any, id: str) -> Any:
    """What a config has by an id such as `train#dataset`, macros (`%train#dataset`) followed; None if it lacks that."""
    found = content
    for key in id.replace("::", "#").split("#"):
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str) and found.startswith("%") and found[1:] != id:
            found = _look(content, found[1:])
    return found


def _digest(path: Path, config: str) -> str:
    """SHA-256 of what decides on the training: the config and the bundle's Python code."""
    digest = hashlib.sha256()
    for file in (path / config, *sorted(path.rglob("*.py"))):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(path).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Opened:
    """A bundle, of whose config MONAI's parser makes what is asked for."""

    path: Path
    file: Path
    content: Mapping[str, Any]
    overrides: Mapping[str, Any]
    kept: dict[Any, Any] = field(default_factory=dict)
    """What was made once."""

    def make(self, ids: Sequence[str], device: torch.device | str = "cpu", **given: Any) -> list[Any]:
        """What these ids stand for, made anew and sharing what they refer to; None for those that the bundle lacks.

        given: what stands for other ids in place of what the config has.
        """
        from monai.bundle import ConfigParser

        parser, made = ConfigParser(deepcopy(dict(self.content))), []
        places = {"bundle_root": str(self.path), "device": torch.device(device)}
        for id, value in {**self.overrides, **places, **given}.items():
            parser.set(value, id)
        for id in ids:
            with user_input_errors(f"{self.file}: `{id}` cannot be made"):
                try:
                    made.append(None if self.look(id) is None else parser.get_parsed_content(id))
                except RuntimeError as error:  # MONAI's own, which says in what, but not why
                    raise (error.__cause__ or error) from None
        return made

    def one(self, id: str, device: torch.device | str) -> Any:
        """What one id stands for, made once for each device."""
        if (key := (id, str(device))) not in self.kept:
            (self.kept[key],) = self.make([id], device)
        return self.kept[key]

    def look(self, id: str) -> Any:
        return self.overrides.get(id, _look(self.content, id))

    def channels(self, of: str, *keys: str) -> int | None:
        """How many channels the network's config, or else the metadata, say that inputs or outputs have."""
        described = self.path / "configs" / "metadata.json"
        said = _look(_read(described), f"network_data_format#{of}#num_channels") if described.is_file() else None
        found = (*(self.look(f"network_def#{key}") for key in keys), said)
        return next((one for one in found if isinstance(one, int)), None)

    @property
    def outputs(self) -> int | None:
        return self.channels("outputs#pred", "out_channels", "num_classes")


def opened(path: str, config: str, digest: str, overrides: Mapping[str, Any]) -> Opened:
    """Open the bundle, once; InputError where it is another one than the federation's, or MONAI is missing."""
    return _opened(Path(path), config, digest, json.dumps(overrides))


@cache
def _opened(path: Path, config: str, digest: str, overrides: str) -> Opened:
    of_monai("ignite.metrics", "monai.bundle")
    content = _read(path / config)
    if _digest(path, config) != digest:
        raise InputError(f"{path}: differs from the federation's bundle, or has changed; give all peers the same")
    import_from(path)  # where its `scripts` are
    sys.dont_write_bytecode = True  # a bundle is only read
    return Opened(path, path / config, content, json.loads(overrides))


@cache
def of_monai(*modules: str) -> list[Any]:
    """Modules of MONAI, and of what it needs; InputError where one is missing."""
    with suppress(InputError):
        torchvision()  # MONAI imports it, and it plainly fails where it is built for another torch
    try:
        return [import_module(name) for name in modules]
    except ImportError as error:
        raise InputError(f"MONAI is missing ({error}); pip install -c constraints.txt 'dfl[monai]'") from error


def data_sets(
    root: Path | None = None, spacing: Sequence[float] = (), **bundle: Any
) -> tuple["BundleSamples", "BundleSamples"]:
    """The bundle's own data sets for training and for tests. InputError where samples do not go with its network, or
    have another spacing than is wanted."""
    made = BundleSamples("train", root, bundle), BundleSamples("validate", root, bundle)
    for one in made:
        one.check(spacing)
    return made


class BundleSamples(Dataset[Any]):
    """A data set of the bundle; its samples are whatever the bundle makes, and `batch` makes tensors of them."""

    def __init__(self, part: str, root: Path | None, bundle: Mapping[str, Any]) -> None:
        self._made_of, of = (part, root, bundle), opened(**bundle)
        from monai.data import list_data_collate
        from monai.engines.utils import default_prepare_batch

        given: dict[str, Any] = {} if root is None else {"dataset_dir": str(root)}
        if "CacheDataset" in str(of.look(f"{part}#dataset")):
            given[f"{part}#dataset#progress"] = False
        runs = {"train": "train#trainer", "validate": "validate#evaluator"}[part]
        ids = (f"{part}#dataset", f"{part}#dataloader#collate_fn", f"{runs}#prepare_batch")
        with sample_streams():  # what the config draws is the same each time
            draw_from(0)
            self._dataset, collated, prepared = of.make(ids, **given)
        self._collate: Callable[[Any], Any] = collated or list_data_collate
        self._prepare: Callable[..., Any] = prepared or default_prepare_batch

    def __reduce__(self) -> Any:
        """A worker makes its own: not all that a config makes can be sent."""
        return type(self), self._made_of

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple["BundleSamples", Any]:
        return self, self._dataset[index]

    def batch(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
        """(inputs, targets) as the bundle's loader and its trainer make them."""
        made = self._prepare(self._collate(samples), torch.device("cpu"), False)
        if not isinstance(made, tuple) or len(made) != 2 or not all(isinstance(one, Tensor) for one in made):
            raise ValueError("a batch of the bundle's is not an image and a label, one tensor each")
        return _plain(made[0]), _plain(made[1])

    def check(self, spacing: Sequence[float]) -> None:
        """InputError, naming the file, for an image or a label that the network cannot take, or of another spacing."""
        part, root, bundle = self._made_of
        of, data, cached = opened(**bundle), self._dataset, getattr(self._dataset, "_cache", ())
        if not len(self):
            raise InputError(f"{of.file}: `{part}#dataset` has no samples in {root or 'its place'}; see `dataset_dir`")
        few = np.unique(np.linspace(0, len(self) - 1, MOST_READ).astype(int)).tolist()
        for row in range(len(self)) if len(cached) == len(self) else few:
            with user_input_errors(f"{of.file}: `{part}#dataset` fails at sample {row}"), sample_streams():
                draw_from(row)
                found = cached[row] if len(cached) == len(self) else _uncut(data, row)
            for sample in found if isinstance(found, list) else [found]:
                if isinstance(sample, Mapping) and "image" in sample:
                    _check(sample["image"], sample.get("label"), row, of, spacing)


def _uncut(data: Any, row: int) -> Any:
    """A sample of MONAI's as it is before random transforms, such as crops."""
    from monai.transforms import Compose, RandomizableTrait, Transform

    steps, raw = getattr(data, "transform", None), getattr(data, "data", None)
    if raw is None or not isinstance(steps, Compose):
        return data[row]
    end = steps.get_index_of_first(lambda one: isinstance(one, RandomizableTrait) or not isinstance(one, Transform))
    return steps(deepcopy(raw[row]), end=end)


def _check(image: Any, label: Any, row: int, of: Opened, spacing: Sequence[float]) -> None:
    """InputError for a number of channels that the network does not take, a label that is no class, or another
    spacing."""
    names = [getattr(one, "meta", {}).get("filename_or_obj") for one in (label, image)]
    file = names[0] or names[1] or f"sample {row}"
    channels, loss = of.channels("inputs#image", "in_channels"), of.look("loss")
    if channels is not None and len(image) != channels:
        raise InputError(
            f"{names[1] or file}: has {len(image)} channels, and the bundle's network takes {channels}; leave "
            "it out, or convert it"
        )
    found = [float(one) for one in getattr(image, "pixdim", ())][: len(spacing)]
    if spacing and (len(found) < len(spacing) or not np.allclose(found, spacing, rtol=1e-3)):
        given, wanted = (", ".join(f"{one:g}" for one in sizes) or "none" for sizes in (found, spacing))
        raise InputError(
            f"{names[1] or file}: the spacing is {given}, and `spacing` of the task is {wanted}; resample it, by "
            "Spacingd in the bundle for instance"
        )
    of_classes = isinstance(loss, dict) and (
        loss.get("to_onehot_y") is True or str(loss.get("_target_")).endswith("CrossEntropyLoss")
    )
    if label is None or of.outputs is None or not of_classes:
        return
    classes = _plain(label)
    classes = classes[classes != loss.get("ignore_index", -100)]
    low, high = (float(classes.min()), float(classes.max())) if classes.numel() else (0.0, 0.0)
    if low < 0 or high >= of.outputs:
        raise InputError(
            f"{file}: has the label {low if low < 0 else high:g}, and the bundle has {of.outputs} classes, numbered "
            "from 0; correct the labels, or leave it out"
        )


def _plain(tensor: Any) -> Tensor:
    """Without MONAI's record of where it comes from."""
    made: Tensor = tensor.as_tensor() if hasattr(tensor, "as_tensor") else torch.as_tensor(tensor)
    return made


def collate(samples: list[tuple[BundleSamples, Any]]) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of some samples of one data set."""
    return samples[0][0].batch([sample for _, sample in samples])


def network(shape: tuple[int, ...], classes: int, **bundle: Any) -> nn.Module:
    """The bundle's network with fresh weights; its tensors have the names that they have in `models/model.pt`."""
    of = opened(**bundle)
    made: nn.Module
    (made,) = of.make(["network" if of.look("network_def") is None else "network_def"])
    return made


def train(loop: Any, **bundle: Any) -> float:
    """One phase by the bundle's optimiser, schedule, inferer and batch size; the mean loss.

    The optimiser's state lives on in `loop.state`, and so does how often the schedule has gone on.
    """
    of = opened(**bundle)
    scheduled, by_epoch = _schedule(of)
    ids = ("optimizer", scheduled, "train#dataloader#batch_size", "train#inferer")
    optimiser, schedule, size, inferer = of.make(ids, loop.device, network=loop.model)
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise InputError(f"{of.file}: `{scheduled}` goes by a metric, which no peer has while it trains; take another")
    loop.keep(optimiser)
    place = f"{loop.part} schedule"
    steps = int(loop.state[place]) if place in loop.state else 0
    total, seen = 0.0, 0

    def advance(times: int) -> None:
        for _ in range(times if schedule else 0):
            schedule.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that nothing was trained between these steps
        advance(steps)
    for _ in range(loop.epochs):
        for inputs, targets, positions in loop.batches(size):
            optimiser.zero_grad()
            outputs = inferer(inputs, loop.model) if inferer else loop.model(inputs)
            loss = loop.loss(outputs, targets)
            loss.backward()
            optimiser.step()
            total, seen = total + float(loss.detach()) * len(positions), seen + len(positions)
            advance(not by_epoch)
            steps += not by_epoch
        advance(by_epoch)
        steps += by_epoch
    loop.state[place] = torch.tensor(steps)
    return total / seen


def _schedule(of: Opened) -> tuple[str, bool]:
    """The id of the learning rate's schedule, and whether it goes on by epochs: as the bundle's handler has it."""
    for number, handler in enumerate(of.look("train#handlers") or ()):
        named = isinstance(handler, dict) and str(handler.get("_target_")).endswith("LrScheduleHandler")
        if named and handler.get("_disabled_") not in (True, "true", "True"):
            return f"train#handlers#{number}#lr_scheduler", handler.get("epoch_level", True) is True
    return "lr_scheduler", True


class BundleTask(Task):
    """The bundle's loss, inferer, post-processing and key metric, volume by volume.

    Of a metric of MONAI's that collects some numbers a sample, such as the Dice of each class, and reduces them at the
    end, these are a sample's row. Of any other the row is what it judges, post-processed.
    """

    name: str
    path: str = ""
    config: str = ""
    digest: str = ""
    overrides: dict[str, JsonValue] = Field(default_factory=dict)
    figure: str = "key_metric"
    better: Literal["up", "down"] = "up"

    evaluation_batch: ClassVar[int] = 1
    _output_noun: ClassVar[tuple[str, str]] = ("output channel", "output channels")

    @property
    def figures(self) -> tuple[Figure, ...]:  # type: ignore[override]
        return (Figure(self.figure, self.better),)

    def outputs(self, parts: Sequence[NDArray[Any]], given: int | None, where: str) -> int:
        return self._of.outputs or 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = self._of.one("loss", outputs.device)(outputs, targets)
        return found.mean()

    def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        inferer = self._of.one("validate#inferer", inputs.device)
        outputs: Tensor = inferer(inputs, forward) if inferer else forward(inputs)
        return outputs

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        after, rows = self._of.one("validate#postprocessing", outputs.device), []
        for pred, label in zip(outputs, targets, strict=True):
            data = {"pred": pred.clone(), "label": label.clone()}
            kept = [_plain(one).detach() for one in self._kept(after(data) if after else data)]
            if sum(map(torch.numel, kept)) > MOST_KEPT:
                raise InputError(
                    f"{self._of.file}: `validate#key_metric` needs all voxels of all volumes together; take one of "
                    "MONAI's that is made volume by volume, such as MeanDice"
                )
            self._of.kept["row"] = [(one.shape, one.dtype) for one in kept]
            rows.append(torch.cat([one.double().flatten() for one in kept]))
        return torch.stack(rows)

    def judge(self, rows: NDArray[np.float64]) -> dict[str, float]:
        parts = self._of.kept["row"]
        columns = np.split(rows, np.cumsum([math.prod(shape) for shape, _ in parts])[:-1], axis=1)
        kept = [
            torch.from_numpy(column.reshape(-1, *shape)).to(dtype)
            for column, (shape, dtype) in zip(columns, parts, strict=True)
        ]
        metric, collects = self._metric()
        if not collects:
            metric.update(tuple(kept))
            found = metric.compute()
        elif all(bool(one.isnan().all()) for one in kept):
            found = math.nan  # of which MONAI would make 0
        else:
            metric.metric_fn.extend(*kept)
            found = metric.metric_fn.aggregate()
        numbers = np.asarray(found[0] if isinstance(found, list | tuple) else found, float).reshape(-1)
        if len(numbers) != 1:
            raise InputError(
                f"{self._of.file}: `validate#key_metric` gives {len(numbers)} numbers; write `reduction: mean` there"
            )
        return {self.figure: float(numbers[0]) if np.isfinite(numbers[0]) else math.nan}

    @property
    def _of(self) -> Opened:
        return opened(self.path, self.config, self.digest, self.overrides)

    def _metric(self) -> tuple[Any, bool]:
        """The metric, empty, and whether it is one that collects."""
        from monai.metrics import CumulativeIterationMetric

        metric = self._of.make(["validate#key_metric"])[0][self.figure]
        metric.reset()
        return metric, isinstance(getattr(metric, "metric_fn", None), CumulativeIterationMetric)

    def _kept(self, data: Any) -> list[Any]:
        """What is kept of a sample."""
        metric, collects = self._metric()
        if not collects:
            return [one[0] for one in metric._output_transform([data])]
        metric.iteration_completed(SimpleNamespace(state=SimpleNamespace(output=[data])))
        found = metric.metric_fn.get_buffer()
        return [one[0] for one in (found if isinstance(found, list) else [found])]
