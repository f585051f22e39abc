"""The trained model as a file of use without a federation: safetensors, or a plain torch state dict."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import safetensors.torch
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    Json,
    JsonValue,
    PositiveInt,
    ValidationError,
    model_validator,
)
from safetensors import safe_open
from torch import Tensor

from peer.errors import InputError
from peer.files import open_plain, sync, write_atomically
from peer.learning.data.samples import Names, Rule, Standardisation
from peer.learning.device import copies
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example, takes_several
from peer.learning.model.weights import open_weights, tensor_file_errors
from peer.learning.model.zoo import build, make_split
from peer.learning.named_tensors import content_sha256, named_sha256
from peer.learning.tasks import Task, task_class
from peer.records import Many, Named

Shape = Many[PositiveInt]


def save_model(model: Model, path: str | Path) -> None:
    """Write `model.safetensors`: every parameter and persistent buffer by its name (`extractor.…`, `head.…`).

    The metadata says how to build it again, each as JSON: `model` its name, `shape` of an input, `classes`, the `task`,
    and, where they are needed, further `settings`; `head` lists the head's tensors where their names do not tell;
    `columns` and `class_names` what data with names call them; `standard` the `means` and `deviations` by which inputs
    were standardised; `imputed`, of columns that may lack values, the `value` for those and the `rule` that found it.
    Frozen tensors that the model's maker makes again are left out; `omitted` is their SHA-256. Of several inputs,
    `shape` has those of all, and `dtypes` what they hold.
    """
    described = {"model": model.name, "shape": model.shape, "classes": model.classes}
    described["task"] = {"name": model.task.name} | model.task.model_dump(mode="json", exclude_defaults=True)
    if settings := model.settings.description():
        described["settings"] = settings
    if model.frozen or model.settings.head is not None:
        described["head"] = [entry.name for entry in model.entries("head")]
    named = {"columns": model.names.columns, "class_names": model.class_names}
    described |= {key: names for key, names in named.items() if names}
    if model.standard:
        values = {"means": model.standard.means, "deviations": model.standard.deviations}
        described["standard"] = {key: value.tolist() for key, value in values.items()}
        if model.standard.imputed is not None:
            found = zip(model.names.rules.items(), model.standard.imputed[model.names.places].tolist(), strict=True)
            described["imputed"] = {name: {"rule": rule, "value": value} for (name, rule), value in found}
    if model.takes_several:
        described["dtypes"] = model.dtypes
    if omitted := model.rebuilt:
        described["omitted"] = named_sha256(omitted)
    metadata = {key: json.dumps(value) for key, value in described.items()}
    kept = {name: tensor for name, tensor in model.state().items() if name not in omitted}
    _write(Path(path), safetensors.torch.save(copies(kept), metadata))


def state_dict(model: Model) -> dict[str, Tensor]:
    """A plain state dict: copies on the CPU, contiguous, by name; of two modules, each half's names start with its own.

    One tensor that a module has twice stands under the first of its names.
    """
    return copies(model.state())


def load_model(path: str | Path, *, user_model: str | None = None, user_task: str | None = None) -> Model:
    """The model in a `model.safetensors`, on the CPU in evaluation mode, ready for `predict(x)`.

    A file can name code of the user's own (`module:Name`), for the model and for the task. That is only imported when
    the caller names the same as `user_model` and `user_task`, so that opening someone's file never runs code that the
    file chose. That code is given the file's options: where it is a MONAI bundle's, these must be trusted as well.
    InputError if the file is missing, truncated or not such a model.
    """
    path = Path(path)
    tensors, described = _read(path)
    name, needed = described.model, described.own_code
    ours = {"user_model": user_model, "user_task": user_task}
    if any(theirs != ours[key] for key, theirs in needed.items()):
        keys = ", ".join(f"{key}={theirs!r}" for key, theirs in needed.items())
        raise InputError(f"{path} needs your own code; if you trust it: load_model(path, {keys})")
    if ":" not in name:
        _refuse_another(path, described, tensors)
    example = Example.zeros(described.shape, described.classes, _task(path, described.task), described.dtypes)
    model = build(described.as_settings(path), example, seed=0)
    omitted = model.rebuilt if described.omitted else {}
    if described.omitted and (found := named_sha256(omitted)) != described.omitted:
        raise InputError(
            f"{path} goes with frozen weights sha256:{described.omitted}, and {name} makes sha256:{found}; give it the "
            "files of which it made them before"
        )
    model.load({**omitted, **tensors})
    model.train(False)
    model.names = described.names
    model.standard = described.as_tensors()
    return model


def read_if_intact(model: Model, path: Path, sha256: str) -> dict[str, Tensor] | None:
    """The weights of `model` in that file, if they have that checksum (`model_sha256` of a result)."""
    try:
        with open_weights(path) as stored:
            tensors = {**model.rebuilt, **{name: one.read() for name, one in stored.items()}}
    except InputError:
        return None
    return tensors if content_sha256(tensors) == sha256 else None


def export_state_dict(path: str | Path, target: str | Path) -> None:
    """Write the tensors of a `model.safetensors` as a torch state dict (`torch.load`, weights only)."""
    tensors, _ = _read(Path(path))
    with tempfile.TemporaryFile() as file:
        torch.save(tensors, file)
        file.seek(0)
        _write(Path(target), file.read())


def read_header(path: str | Path) -> "ModelFileHeader":
    """What a `model.safetensors` tells of its model, without its tensors. InputError as from `load_model`."""
    with _opened(Path(path)) as file:
        return ModelFileHeader.from_file(file)


InputDtype = Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


class HeaderTask(BaseModel):
    """The `task` block that a file tells."""

    model_config = ConfigDict(extra="allow")
    name: str


class HeaderStandardisation(BaseModel):
    """How inputs are standardised."""

    means: Many[FiniteFloat]
    deviations: Many[Annotated[FiniteFloat, Field(gt=0)]]


class HeaderImputation(BaseModel):
    """What stands for missing values of a column."""

    rule: Rule
    value: FiniteFloat


class ModelFileHeader(BaseModel):
    """What a file says of its model, each as JSON."""

    model: Json[str]
    shape: Json[Shape | Many[Shape] | Named[Shape]]
    classes: Json[PositiveInt]
    task: Json[HeaderTask] = HeaderTask(name="classification")
    settings: Json[Named[JsonValue]] = Field(default_factory=dict)
    columns: Json[Many[str]] = ()
    class_names: Json[Many[str]] = ()
    standard: Json[HeaderStandardisation] | None = None
    imputed: Json[Named[HeaderImputation]] = Field(default_factory=dict)
    omitted: Json[str] = ""
    dtypes: Json[Many[InputDtype]] = ()

    @model_validator(mode="after")
    def _of_one_size(self) -> Self:
        """Check that names and statistics are as many as columns and classes."""
        standard = (self.standard.means, self.standard.deviations) if self.standard else ()
        for told in (self.columns, *standard):
            if told and self.shape != (len(told),):
                raise ValueError("the columns are not those of its inputs")
        if Names.imputing(self.names.raw, self.names.rules).columns != self.columns or (self.imputed and not standard):
            raise ValueError("the columns are not those that are imputed")
        if takes_several(self.shape) and len(self.dtypes) != len(self.shape):
            raise ValueError("there is no dtype for each of its inputs")
        if self.class_names and len(self.class_names) != self.classes:
            raise ValueError("the class names are not those of its classes")
        return self

    @classmethod
    def from_file(cls, file: Any) -> Self:
        """What an open file tells; ValueError where that is not what a peer writes."""
        return cls.model_validate(file.metadata() or {})

    @property
    def names(self) -> Names:
        return Names(self.columns, self.class_names, {name: one.rule for name, one in self.imputed.items()})

    @property
    def own_code(self) -> dict[str, str]:
        """The code of somebody's own that it names, by argument of `load_model`."""
        named = {"user_model": self.model, "user_task": self.task.name}
        return {key: name for key, name in named.items() if ":" in name}

    def as_tensors(self) -> Standardisation | None:
        """How inputs are imputed and standardised; None if they are not."""
        if (found := self.standard) is None:
            return None
        values = self.names.placed(torch.tensor([one.value for one in self.imputed.values()]))
        return Standardisation(torch.tensor(found.means), torch.tensor(found.deviations), values)

    @property
    def one_shape(self) -> Shape | None:
        """The shape of the input; None where there are several."""
        sizes = tuple(one for one in self.shape if isinstance(one, int))
        return sizes if isinstance(self.shape, tuple) and len(sizes) == len(self.shape) else None

    def as_settings(self, path: Path) -> ModelSettings:
        """How to build it; InputError for what no model could be built by."""
        try:
            # A file has all weights itself: it must not cause another one to be read.
            kept = {key: value for key, value in self.settings.items() if key != "weights"}
            return ModelSettings.model_validate_json(json.dumps({"name": self.model, **kept}), strict=True)
        except ValueError as error:
            raise InputError(f"{path}: its settings are those of no model; copy the file again") from error


def _task(path: Path, told: HeaderTask) -> Task:
    try:
        return task_class(told.name).model_validate_json(told.model_dump_json(), strict=True)
    except ValidationError:
        raise InputError(f"{path}: `task` is not as a peer writes it; copy the file again") from None


def _refuse_another(path: Path, described: ModelFileHeader, tensors: Mapping[str, Tensor]) -> None:
    """InputError unless the file has the tensors of the model that it names: a kilobyte can name one of terabytes."""
    name, classes, shape = described.model, described.classes, described.one_shape
    size = sum(tensor.nbytes for tensor in tensors.values())
    # Of torchvision's models no tensor grows with the image, whose trial run takes memory as well.
    fits = shape is not None and max(prod(shape), classes) <= size
    if shape is not None and fits:
        with torch.device("meta"):  # shapes without memory
            made = make_split(ModelSettings(name=name), shape, classes)
        fits = _shapes(made.module.state_dict()) == _shapes(tensors)
    if not fits:
        raise InputError(
            f"{path}: these are not the tensors of model {name} for inputs {described.shape} and {classes} classes"
        )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _read(path: Path) -> tuple[dict[str, Tensor], ModelFileHeader]:
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return tensors, ModelFileHeader.from_file(file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file as safetensors has it; InputError if it is not one, or not as a peer writes it."""
    hint = "give the path of a peer's model.safetensors"
    with tensor_file_errors(path, "model file", "not a safetensors file", hint):
        open_plain(path).close()  # safetensors calls a directory a device that is not there, and waits for a pipe
        try:
            with safe_open(path, "pt") as file:
                yield file
        except ValueError as error:
            raise InputError(f"{path} does not say which model it holds; give a peer's model.safetensors") from error


def _write(path: Path, data: bytes) -> None:
    write_atomically(path, data)
    sync(path.parent)
