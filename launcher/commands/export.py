"""`dfl-launch export`: a peer's trained model as other programs take it.

state-dict   the tensors by name, for `torch.load`; of frozen ones that were read from elsewhere, none
torchscript  the model by `torch.jit.trace`: inputs as they lie in the data, to outputs
onnx         the same by `torch.onnx.export`, for any number of samples

Installed packages bring more, by entry points of the group `dfl.exports`, each a `module:function` that is called with
the peer's directory and the target (`pathlib.Path`).
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from launcher.output import Output
from peer.errors import InputError, optional, suggest
from peer.files import unwritable_reason
from peer.learning.export import export_state_dict, load_model, read_header
from peer.learning.model.model import Model
from peer.learning.model.shape_check import takes_several
from peer.plugins import import_from, installed, load_object
from peer.telemetry.results import MODEL


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


def model_file(peer: Path) -> Path:
    """The model in a peer's directory; InputError where there is none."""
    if not peer.is_dir():
        raise InputError(f"there is no directory {peer}; give a peer's, such as runs/demo/peer0")
    if not (peer / MODEL).is_file():
        raise InputError(
            f"{peer}: has no {MODEL}; give the directory of a peer that has finished, such as runs/demo/peer0"
        )
    return peer / MODEL


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
    if takes_several(model.shape):
        raise InputError(f"{path}: takes several inputs, and can only be had as --format state-dict")
    shape = (len(model.names.raw),) if model.names.rules else model.shape
    return _Whole(model).eval(), torch.zeros(2, *shape, dtype=getattr(torch, model.task.inputs))


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
