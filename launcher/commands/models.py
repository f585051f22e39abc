"""`dfl-launch export` and `predict`: a peer's trained model outside the federation.

Formats of `export`:
state-dict   the tensors by name, for `torch.load`; of frozen ones that were read from elsewhere, none
torchscript  the model by `torch.jit.trace`: inputs as they lie in the data, to outputs
onnx         the same by `torch.onnx.export`, for any number of samples

Installed packages bring more, by entry points of the group `dfl.exports`, each a `module:function` that is called with
the peer's directory and the target (`pathlib.Path`).

Samples of `predict` are read as their file tells: a table by the names of its columns, arrays as `data: npz` reads
them, image files scaled as `data: image-folder` scales them. A model of one's own may read other files: its module's
`read_inputs(path, **options)` returns inputs (n, ...), as `predict` of a model takes them.
"""

import argparse
import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from launcher.engines.base import checked_settings, parsed_options
from launcher.output import Output
from launcher.page.document import as_cell
from peer.errors import InputError, optional, suggest
from peer.files import open_plain, unwritable_reason, write_atomically
from peer.learning.data.dataset import pixels_as_inputs
from peer.learning.data.sources import SOURCES
from peer.learning.data.sources.image_folder import SUFFIXES, ImageFiles
from peer.learning.data.sources.npz import read_npz
from peer.learning.export import export_state_dict, load_model, read_header
from peer.learning.model.model import Model, as_inputs
from peer.learning.tasks import Classification, Multilabel
from peer.plugins import import_from, installed, load_object, user_input_errors
from peer.telemetry.results import MODEL
from peer.text import plural

MOST_NUMBERS = 100
"""Of a sample's answer; a larger one is no column of a table."""
OURS = ("sample", "answer", "probability")
"""What the columns of answers begin with."""
TABLES = {".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet"}


# Which model.


def model_file(peer: Path) -> Path:
    """The model in a peer's directory; InputError where there is none."""
    if not peer.is_dir():
        raise InputError(f"there is no directory {peer}; give a peer's, such as runs/demo/peer0")
    if not (peer / MODEL).is_file():
        raise InputError(
            f"{peer}: has no {MODEL}; give the directory of a peer that has finished, such as runs/demo/peer0"
        )
    return peer / MODEL


def import_code(folder: Path | None) -> None:
    """Let code be imported from a folder, if one is given; InputError where there is none."""
    if folder is not None:
        if not folder.is_dir():
            raise InputError(f"--code {folder}: there is no such directory")
        import_from(folder.resolve())


def opened(path: Path, trusted: bool) -> Model:
    """The model in a file; InputError where it needs code, unless that is trusted."""
    own = read_header(path).own_code
    if own and not trusted:
        raise InputError(
            f"{path} needs code, {', '.join(own.values())}; if you trust it, say where it lies, --code DIR"
        )
    return load_model(path, **own)


# dfl-launch export.


def export_command(arguments: argparse.Namespace, output: Output) -> int:
    """Write the model; InputError where there is none, or it cannot be had in that format."""
    peer, target, wanted = arguments.peer, arguments.to, arguments.format
    path = model_file(peer)
    if target.exists():
        raise InputError(f"{target} exists already; choose another place with --to")
    if why := unwritable_reason(target.absolute().parent):
        raise InputError(f"{why}; choose another place with --to")
    if wanted not in FORMATS and wanted not in installed("exports"):
        raise InputError(f"--format {wanted}: {suggest(wanted, [*FORMATS, *installed('exports')])}")
    import_code(arguments.code)
    if wanted in FORMATS:
        FORMATS[wanted](path, target, arguments.code is not None)
    else:
        load_object(installed("exports")[wanted].value)(peer, target)
    output.say(f"{wanted}: {target}")
    return 0


def write_torchscript(path: Path, target: Path, trusted: bool) -> None:
    module, example = _whole(path, trusted)
    with torch.no_grad():
        torch.jit.trace(module, example, check_trace=False).save(target)  # type: ignore[no-untyped-call]


def write_onnx(path: Path, target: Path, trusted: bool) -> None:
    for package in ("onnx", "onnxscript"):
        optional(package, "`--format onnx`", package, "onnx")
    module, example = _whole(path, trusted)
    samples = {"x": {0: torch.export.Dim("samples")}}
    made = torch.onnx.export(
        module,
        (example,),
        dynamo=True,
        input_names=["x"],
        output_names=["outputs"],
        dynamic_shapes=samples,
        verbose=False,
    )
    assert made is not None
    made.save(target)


FORMATS: dict[str, Callable[[Path, Path, bool], None]] = {
    "state-dict": lambda path, target, _: export_state_dict(path, target),
    "torchscript": write_torchscript,
    "onnx": write_onnx,
}


class _Whole(nn.Module):
    """A model with what `predict` does before it: raw inputs (n, ...) to outputs."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.module, self._names, self._standard = model.module, model.names, model.standard

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.module(self._standard(self._names.with_flags(x)) if self._standard else x)
        return outputs


def _whole(path: Path, trusted: bool) -> tuple[nn.Module, Tensor]:
    """The model, and two samples like those that it takes."""
    model = opened(path, trusted)
    if model.takes_several:
        raise InputError(f"{path}: takes several inputs, and can only be had as --format state-dict")
    shape = (len(model.names.raw),) if model.names.rules else model.shape
    return _Whole(model).eval(), torch.zeros(2, *shape, dtype=getattr(torch, model.task.inputs))


# dfl-launch predict.


@dataclass(frozen=True)
class Asked:
    """Samples to be judged."""

    names: Sequence[str]
    batch: Callable[[slice], Any]
    """The inputs (k, ...) of some of them, as the model's `predict` takes them."""
    at_once: int
    beside: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Columns of a table that the model does not know, such as a patient's number."""


def predict_command(arguments: argparse.Namespace, output: Output) -> int:
    """Write an answer for each sample; InputError where the model does not take them."""
    target: Path = arguments.to
    if target.suffix not in WRITERS:
        raise InputError(f"--to {target}: choose a name that ends with .csv or .npz")
    if target.exists():
        raise InputError(f"{target} exists already; choose another name with --to")
    if not target.absolute().parent.is_dir():
        raise InputError(f"there is no directory {target.parent}; create it, or choose another place with --to")
    import_code(arguments.code)
    model = opened(model_file(arguments.peer), arguments.code is not None)
    asked = read(arguments.samples, model, parsed_options(arguments.options))
    if not asked.names:
        raise InputError(f"{arguments.samples}: has no samples")
    WRITERS[target.suffix](target, asked, model)
    output.say(f"{plural(len(asked.names), 'answer')}: {target}")
    return 0


def read(path: Path, model: Model, options: Mapping[str, Any]) -> Asked:
    if own := getattr(model.module, "read_inputs", None):
        with user_input_errors(f"{model.name} cannot read {path}"):
            return _of_inputs(own(path, **options), model)
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if kind := next((kind for suffix, kind in TABLES.items() if path.name.endswith(suffix)), None):
        return _of_table(kind, path, model, options)
    if options:
        raise InputError(f"--option {next(iter(options))}: {path} is read without options; leave it out")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if images := [file for file in files if file.suffix.lower() in SUFFIXES]:
        return _of_images(images, model)
    if path.is_dir() and (arrays := [file for file in files if file.suffix == ".npy"]):
        return Asked([file.name for file in arrays], lambda rows: _scaled(_array(arrays[rows][0])[None], model), 1)
    if model.takes_several:
        return _of_inputs(_several(path, model), model)
    asked = _of_inputs(_array(path), model)
    return replace(asked, batch=lambda rows: _scaled(asked.batch(rows), model))


def _of_inputs(inputs: Any, model: Model) -> Asked:
    """Of inputs (n, ...), an array or a tensor or several of them."""
    sizes = {*map(len, tree_leaves(inputs))}
    if len(sizes) > 1:
        raise InputError(f"the inputs have {', '.join(map(str, sorted(sizes)))} samples; give as many of each")

    def part(inputs: Any, rows: slice) -> Any:
        # Of an array on disk a copy, as torch takes none that cannot be written to.
        return np.array(inputs[rows]) if isinstance(inputs, np.ndarray) else inputs[rows]

    names = [*map(str, range(sizes.pop() if sizes else 0))]
    return Asked(names, lambda rows: tree_map(partial(part, rows=rows), inputs), model.task.evaluation_batch)


def _scaled(x: Any, model: Model) -> Any:
    """Arrays (n, ...) as a data set of arrays gives them to the model: uint8 is pixels, unless it knows columns."""
    if x.dtype != np.uint8 or model.task.inputs != "float32" or model.names.raw:
        return np.array(x)
    return pixels_as_inputs(x)


def _several(path: Path, model: Model) -> Any:
    """Of an .npz the arrays by the names of the model's inputs, or arr_0, arr_1 and so on where it has a tuple."""
    arrays = read_npz(path)
    if isinstance(model.shape, dict):
        return arrays
    return tuple(arrays[name] for name in sorted(arrays, key=lambda name: (len(name), name)))


def _of_table(kind: str, path: Path, model: Model, options: Mapping[str, Any]) -> Asked:
    if wrong := options.keys() & {"name", "path"}:
        raise InputError(f"--option {min(wrong)}: the file is {path}; leave it out")
    source: Any = checked_settings(SOURCES[kind], {"name": kind, "path": str(path.absolute()), **options}, str(path))
    frame = source.frame()
    found = {normalize("NFC", str(name).strip()): name for name in frame.columns}
    known = model.names.raw or tuple(found)
    if missing := next((name for name in known if normalize("NFC", name) not in found), None):
        others = [name for name in found if name not in known]
        raise InputError(f"{path}: there is no column `{missing}`, which the model goes by; {suggest(missing, others)}")
    chosen = [found[normalize("NFC", name)] for name in known]
    beside = [name for name in frame.columns if name not in chosen]
    if taken := next((name for name in beside if str(name).partition(" ")[0] in OURS), None):
        raise InputError(f"{path}: the answers have a column `{taken}` of their own; rename it")
    try:
        # All rows at once, so that what is wrong is told by its row in the file.
        numbers = source.features(frame[chosen])
        inputs = as_inputs(numbers, model.names, getattr(torch, model.task.inputs), model.device)
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    texts = source.texts(beside) if kind == "csv" else {name: frame[name].tolist() for name in beside}
    return replace(_of_inputs(inputs, model), beside={str(name): values for name, values in texts.items()})


def _of_images(files: Sequence[Path], model: Model) -> Asked:
    match model.shape:
        case (1 | 3 as channels, int(height), int(width)) if height == width:
            images, pixels = ImageFiles(tuple(files), height, channels), np.float32(255)
            names, every = [file.name for file in files], np.arange(len(files))
            return Asked(names, lambda rows: images[every[rows]] / pixels, model.task.evaluation_batch)
    raise InputError(f"model {model.name} takes inputs of shape {model.shape}, and images are square; give arrays")


def _array(path: Path) -> Any:
    """The array of a .npy file, or `x` of a .npz."""
    if path.suffix == ".npz":
        arrays = read_npz(path)
        if "x" not in arrays:
            raise InputError(f"{path}: has no array `x`, but {', '.join(arrays)}; save the samples under that name")
        return arrays["x"]
    try:
        open_plain(path).close()  # NumPy waits for a pipe
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.ndarray) or not found.ndim:
            raise ValueError("it holds no samples")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}); give a table (.csv, .parquet), an array (.npy, or x in .npz), images, "
            "or a folder of images or of .npy files, one a sample"
        ) from None
    return found


def answers(asked: Asked, model: Model) -> Iterator[tuple[Tensor, Tensor]]:
    """(answers, outputs) of some samples after others, as many at a time as the task judges."""
    for at in range(0, len(asked.names), asked.at_once):
        rows = slice(at, at + asked.at_once)
        try:
            outputs = model.outputs(asked.batch(rows))
        except InputError as error:
            raise InputError(f"from sample {asked.names[at]} on: {error}" if at else str(error)) from error
        yield model.task.answered(outputs), outputs


def write_csv(target: Path, asked: Asked, model: Model) -> None:
    """A line for each sample: what its table has beside, its number or file, the answer and, of classes, each one's
    probability."""
    text, head, at = io.StringIO(), list[str](), 0
    writer = csv.writer(text, lineterminator="\n")
    names = model.class_names if model.task.has_classes else ()
    for some, outputs in answers(asked, model):
        answer = some.reshape(len(some), -1)
        if answer.shape[1] > MOST_NUMBERS:
            raise InputError(f"an answer has {answer.shape[1]} numbers; write them as arrays, --to {target.stem}.npz")
        shares = outputs.double().softmax(1) if isinstance(model.task, Classification) else outputs[:, :0]
        if not head:
            labels = model.class_names if isinstance(model.task, Multilabel) else ()
            numbered = [f"answer {one}" for one in labels or range(answer.shape[1])]
            head = [*map(plain, asked.beside), "sample", *(["answer"] if len(numbered) == 1 else numbered)]
            classes = names[: shares.shape[1]] or range(shares.shape[1])
            writer.writerow([*head, *(f"probability {one}" for one in classes)])
        for said, probable in zip(answer.tolist(), shares.tolist(), strict=True):
            beside = [column[at] for column in asked.beside.values()]
            named = [names[one] for one in said] if names and not some.is_floating_point() else said
            texts = [*beside, asked.names[at], *named]
            writer.writerow([*map(plain, texts), *(f"{one:.6g}" for one in probable)])
            at += 1
    write_atomically(target, text.getvalue().encode())


def plain(value: Any) -> Any:
    """Make a text plain that a spreadsheet would take for a formula, unless it is a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return as_cell(value)
    return value


def write_npz(target: Path, asked: Asked, model: Model) -> None:
    """`answers` (n, ...) or, where samples have files of their own, an array by the name of each."""
    found = [some.numpy() for some, _ in answers(asked, model)]
    numbered = asked.names[0] == "0"
    arrays = {"answers": np.concatenate(found)} if numbered else dict(zip(asked.names, chain(*found), strict=True))
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomically(target, content.getvalue())


WRITERS = {".csv": write_csv, ".npz": write_npz}
