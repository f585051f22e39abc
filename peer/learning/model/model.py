"""A split model on one flat vector: what leaves a peer is a slice of it.

`Model` answers in three ways: `forward` with its own weights, `logits` as a function of any vector in their place,
and `predict` for people, with inputs as they have them or one sentence about what is wrong with those.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from peer.errors import InputError, suggest
from peer.learning.data.samples import Names, Standardisation
from peer.learning.model.layout import (
    ModelPart,
    Patterned,
    Split,
    TensorSlot,
    bind,
    counter_buffers,
    frozen_tensors,
    joined_slices,
    lay_out,
    owner_of,
    rebind,
    resting,
    spread,
    write_counts,
)
from peer.learning.model.low_precision import LowPrecisionParameters, is_low_precision
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example, dry_pass, takes_several
from peer.learning.named_tensors import content_sha256, dtype_name, named_sha256
from peer.learning.randomness import global_stream
from peer.learning.tasks import Multilabel
from peer.process import LARGE_BYTES, forget_content


def _call(module: nn.Module, tensors: dict[str, Tensor], *inputs: Any, **named: Any) -> Any:
    return functional_call(module, tensors, inputs, named)


def _named_tensors(module: nn.Module, layout: Sequence[TensorSlot], vector: Tensor) -> dict[str, Tensor]:
    """Every parameter and buffer by name; buffers as copies, since layers write into them."""
    buffers = dict(module.named_buffers())
    tensors = {name: _like(vector, buffer).clone() for name, buffer in buffers.items()}
    frozen = [(name, p) for name, p in module.named_parameters() if p.dtype != vector.dtype]
    tensors |= {name: _like(vector, parameter.detach()) for name, parameter in frozen}
    # One split and not a slice for each entry: the gradient of every slice would be as long as the whole vector.
    for entry, values in zip(layout, torch.split(vector, [entry.size for entry in layout]), strict=True):
        tensor = values.view(entry.shape)
        tensor = tensor if entry.dtype == "float32" else tensor.to(getattr(torch, entry.dtype))
        # What is not trainable has no gradient here as in training, and BatchNorm refuses statistics that ask for one.
        tensor = tensor if entry.trainable else tensor.detach()
        tensors[entry.name] = tensor.clone() if entry.name in buffers else tensor
    return tensors


def _like(vector: Tensor, tensor: Tensor) -> Tensor:
    """Convert to the vector's dtype, unless the tensor has 16 bits on purpose."""
    exact = tensor.is_floating_point() and tensor.dtype not in (torch.bfloat16, torch.float16)
    return tensor.to(vector.dtype) if exact else tensor


@contextmanager
def _in_modes(modes: Mapping[nn.Module, bool]) -> Iterator[None]:
    """These modes for the block; afterwards every layer has its own again."""
    before = [(layer, layer.training) for layer in modes]
    for layer, mode in modes.items():
        layer.training = mode
    try:
        yield
    finally:
        for layer, mode in before:
            layer.training = mode


def as_inputs(x: Any, names: Names, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An array or tensor as it is; of a table (a pandas DataFrame) the columns in the model's order.

    InputError if a column is missing or unknown, or a value is not finite and none that is imputed.
    """
    columns = names.raw
    if not hasattr(x, "columns"):
        batch = _as_tensor(x, dtype, device)
    else:
        named = _columns_in_order(x, columns) if columns else x
        numbers = [_column_numbers(named[name], name) for name in named.columns]
        batch = torch.as_tensor(np.stack(numbers, axis=1), dtype=dtype, device=device)
    wrong = ~torch.isfinite(batch)
    if names.rules and batch.shape[-1:] == (len(columns),):
        wrong[..., names.places] &= ~batch[..., names.places].isnan()
    if bool(wrong.any()):
        _refuse_not_finite(batch, wrong, columns)
    return batch


def _as_tensor(x: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    try:
        return torch.as_tensor(x, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the inputs are not numbers in the form of an array ({error}); convert them") from error


def _columns_in_order(table: Any, columns: Sequence[str]) -> Any:
    found, columns = ([str(name).strip() for name in names] for names in (table.columns, columns))
    for name in columns:
        if found.count(name) != 1:
            why = suggest(name, found) if name not in found else "rename one of them"
            lacks = "there is no column" if name not in found else "there are several columns"
            raise InputError(f"{lacks} `{name}`, which the model goes by; {why}")
    if unknown := [name for name in found if name not in columns]:
        raise InputError(f"the model knows no column `{unknown[0]}`; leave it out, it goes by {', '.join(columns)}")
    table = table.set_axis(found, axis=1)
    return table[[*columns]]


def _column_numbers(column: Any, name: Any) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
    except (ValueError, TypeError) as error:
        raise InputError(f"column `{name}` holds something other than numbers ({error}); convert it") from error


def _refuse_not_finite(batch: Tensor, wrong: Tensor, columns: Sequence[str]) -> None:
    """InputError for the first value that is wrong."""
    rows, wrong = (batch[None], wrong[None]) if batch.ndim < 2 else (batch, wrong)
    place = torch.argwhere(wrong)[0].tolist()
    row, column = place[0], place[-1]
    where = f" in column {f'`{columns[column]}`' if column < len(columns) else column + 1}" if rows.ndim == 2 else ""
    raise InputError(
        f"row {row + 1} of the inputs has {float(rows[tuple(place)])}{where}; fill it in or leave the row out, as "
        "a model answers to finite numbers only"
    )


Gradient = Callable[[Tensor], Tensor]
"""Gives a vector like the one it is given, in which nothing need be kept from one step to the next."""


class Model:
    """Extractor and head, whose parameters and float buffers are views into `vector`.

    `vector` and `gradient` are float32, of one layout: extractor parameters, extractor float buffers, head
    parameters, head float buffers (`layout` says what lies where). Autograd accumulates into `gradient` in
    place. Write into `vector`; never rebind it. Integer and boolean buffers (BatchNorm's counters) lie apart
    in `counters`, live and by name. What is frozen when the model is made lies in `frozen`, in neither.
    Non-persistent buffers are the module's own affair: moved to the device, in none of them.

    Tensors of 16 bits are not views: before every pass they are the vector's values, rounded, and what a
    backward pass leaves at them is added to `gradient`.
    """

    def __init__(
        self,
        split: Split | Patterned,
        *,
        settings: str | ModelSettings,
        example: Example,
        device: torch.device | str = "cpu",
        gradient: Gradient = torch.zeros_like,
    ) -> None:
        """Check by a dry pass that the model fits the example's task (else InputError); lay it out.

        settings: how to build it again, or only its name.
        gradient: makes `gradient` for `vector`; models that never learn at the same time can have one together.
        """
        self.settings = ModelSettings(name=settings) if isinstance(settings, str) else settings
        self.name, self.shape, self.classes = self.settings.name, example.shape, example.classes
        self.dtypes: tuple[str, ...] = tuple(map(dtype_name, tree_leaves(example.inputs)))
        """Of its inputs, in their order."""
        self.task = example.task
        self.device = torch.device(device)
        self.facts: tuple[str, ...] = ()
        """What of its weights must be equal at all peers, in words."""
        self.loaded = ""
        """How many tensors it has from which file, in words; empty if it has none."""
        self.names = Names()
        """What the data call its input columns and its classes."""
        self.standard: Standardisation | None = None
        """How `predict` imputes and standardises inputs before the model sees them."""
        self.module: nn.Module = split.module
        self._entrances = split.entrances
        #: Whether a training pass draws from torch's global generator (dropout), which then has to be seeded.
        self.draws = dry_pass(self.module, self.name, example)
        self.layout: tuple[TensorSlot, ...] = lay_out(split, self.name)
        self.module.to(self.device)
        self._resting = resting(split)
        self.frozen: dict[str, Tensor] = frozen_tensors(self.module)
        self._versions = write_counts(self.frozen)
        self.counters: dict[str, Tensor] = counter_buffers(self.module, self.frozen)
        border = sum(one.size for one in self.layout if one.part == "extractor")
        end = sum(one.size for one in self.layout)
        self._parts: dict[ModelPart, slice] = {
            "extractor": slice(0, border),
            "head": slice(border, end),
            "model": slice(0, end),
        }
        self.vector = torch.empty(end, dtype=torch.float32, device=self.device)
        self.gradient = gradient(self.vector)
        bind(self.module, self.layout, self.vector, self.gradient)
        self._rounded = LowPrecisionParameters(split, self.layout, self.vector, self.gradient)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of its classes or labels: of the data or, where these have numbers at most, of its module."""
        own, numbers = tuple(map(str, getattr(self.module, "class_names", None) or ())), map(str, range(self.classes))
        names_each = len({*own}) == len(own) == self.classes
        return own if names_each and self.names.classes in ((), tuple(numbers)) else self.names.classes

    @property
    def extractor(self) -> Tensor:
        """The extractor's slice of `vector`, as a view."""
        return self.vector[self.part("extractor")]

    @property
    def head(self) -> Tensor:
        """The head's slice of `vector`, as a view; empty if the head has nothing to learn."""
        return self.vector[self.part("head")]

    def part(self, name: ModelPart) -> slice:
        """The slice of `vector` that holds a part: its parameters and float buffers."""
        return self._parts[name]

    @property
    def sizes(self) -> dict[str, int]:
        """Values of `extractor`, `head` and `model`."""
        return {name: part.stop - part.start for name, part in self._parts.items()}

    @property
    def rebuilt(self) -> Mapping[str, Tensor]:
        """What is frozen and its maker makes again from what it has read, as `rebuilt_names` of the module say: no file
        need hold it."""
        names = getattr(self.module, "rebuilt_names", ())
        return {name: tensor for name, tensor in self.frozen.items() if name in names}

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be said of it beside its sizes: how much of it is frozen, and what it has from a file."""
        held = sum(tensor.numel() for tensor in self.frozen.values())
        return tuple(one for one in (f"{held:,} frozen values" if held else "", self.loaded) if one)

    def trainable(self, name: ModelPart) -> tuple[slice, ...]:
        """The slices of `vector` that an optimiser may step, as few as possible; maybe none."""
        return joined_slices(entry for entry in self.entries(name) if entry.trainable and entry.size)

    def entries(self, name: ModelPart = "model") -> tuple[TensorSlot, ...]:
        """The part's tensors in the vector's order: the manifest of what travels when the part does."""
        return tuple(entry for entry in self.layout if name in ("model", entry.part))

    @property
    def halves(self) -> tuple[nn.Module, nn.Module] | None:
        """Extractor and head, to be called one after the other with features in between that may be kept.

        None for one module divided by names, and where the extractor has tensors of 16 bits, which samples have not.
        """
        if len(self._entrances) < 2 or any(map(is_low_precision, self._entrances[0].parameters())):
            return None
        return self._entrances[0], self._entrances[1]

    def layers(self, part: ModelPart) -> tuple[nn.Module, ...]:
        """The layers, and the modules that hold them, that are in training mode while the part learns."""
        still = {*map(id, self._resting[part])}
        return tuple(layer for root in self._roots(part) for layer in root.modules() if id(layer) not in still)

    def _roots(self, part: ModelPart) -> tuple[nn.Module, ...]:
        if part == "model" or len(self._entrances) < 2:
            return self._entrances
        return self._entrances[:1] if part == "extractor" else self._entrances[1:]

    def train(self, mode: bool = True, part: ModelPart = "model") -> None:
        """Put a part into training mode, or into evaluation mode when `mode` is false; what is frozen rests.

        Of one module that is divided by names a layer goes with its own parameters; one without any, such as
        dropout, with those inside it or else of the nearest module around it that has some. It is in training
        mode if any of them belongs to the part.
        """
        for root in self._roots(part):
            root.train(mode)
        for layer in self._resting[part] if mode else ():
            layer.training = False

    def forget_gradient(self, part: ModelPart) -> None:
        """Give back the memory of a part's gradient, if that is large, until a phase trains it again."""
        gradient = self.gradient[self.part(part)]
        if self.device.type == "cpu" and gradient.nbytes >= LARGE_BYTES:
            forget_content(gradient.data_ptr(), gradient.nbytes)

    def learn(self, part: ModelPart) -> None:
        """Let `part` learn: in training mode, with gradients; the rest frozen, in evaluation mode.

        So a frozen part moves neither its parameters nor its BatchNorm statistics, and draws no dropout.
        """
        self.train(False)
        self.train(True, part)
        for entry in self.layout:
            if entry.trainable:
                self.module.get_parameter(entry.name).requires_grad_(part in ("model", entry.part))

    def forward(self, x: Any) -> Tensor:
        """(n, *shape) on the model's device → its outputs: (n, classes) logits where the task has classes."""
        outputs: Tensor = spread(self.module, x)
        return outputs

    def __call__(self, x: Tensor) -> Tensor:
        """`forward`."""
        return self.forward(x)

    def logits(self, vector: Tensor, x: Tensor, *, training: bool = False, seed: int | None = None) -> Tensor:
        """(n, classes): the answer to `x` (n, *shape) of this model with `vector` (p,) in place of its own weights.

        `vector` has the layout of `Model.vector` and any floating dtype, which must be that of `x`, and in which all
        is computed. The result is differentiable in both; the gradient is 0 at what is not trainable. It may stand
        inside `torch.func.grad` and `vmap`. The model itself stays as it is, with its modes and gradients.

        With `training`, dropout draws from a stream of `seed`, which is required then (in `vmap`, name its
        `randomness`), and BatchNorm normalises by the batch; the running statistics of neither model nor `vector`
        move. BatchNorm cannot train inside a `vmap` over inputs alone, as for per-sample gradients: torch refuses it.
        ValueError for a vector or inputs that do not fit.
        """
        if vector.shape != self.vector.shape or not vector.is_floating_point():
            weights, given = len(self.vector), f"{tuple(vector.shape)} of {vector.dtype}"
            raise ValueError(f"the weights are {weights} floating-point numbers, not {given}")
        if isinstance(x, Tensor) and x.dtype != vector.dtype:
            raise ValueError(f"the weights are {vector.dtype} and x is {x.dtype}; use x.to(vector.dtype)")
        if training and self.draws and seed is None:
            raise ValueError(f"model {self.name} draws random numbers in training (dropout); give `logits` a seed")
        modes = dict.fromkeys(self.module.modules(), False)
        modes |= dict.fromkeys(self.layers("model") if training else (), True)
        stream = global_stream(seed, self.device) if training and self.draws else nullcontext()
        with stream, self._rounded.suspended(), _in_modes(modes):
            logits: Tensor = spread(partial(_call, self.module, _named_tensors(self.module, self.layout, vector)), x)
        return logits

    @property
    def takes_several(self) -> bool:
        """Whether it takes a dict or a tuple of inputs."""
        return takes_several(self.shape)

    @overload
    def predict(self, x: Any, *, names: Literal[False] = False) -> Tensor: ...

    @overload
    def predict(self, x: Any, *, names: Literal[True]) -> Any: ...

    def predict(self, x: Any, *, names: bool = False) -> Any:
        """(n, *shape), or one sample (*shape) → the task's answers, on the CPU: class numbers, int64 (n,) or ().

        Inputs are as they lie in the data: the model imputes and standardises them itself. Those of a pandas DataFrame
        are taken by their columns' names; several inputs are a dict or a tuple, as in training. With `names` the
        classes' names: a list of str, or one; of labels a list of those that hold for each sample. InputError for
        inputs that do not fit or are not finite, and where classes have no names.
        """
        known = self.class_names if self.task.has_classes or isinstance(self.task, Multilabel) else ()
        if names and not known:
            raise InputError(f"model {self.name} knows no names of classes; leave out `names`")
        outputs, single = self._outputs(x)
        answers = self.task.answered(outputs).cpu()
        if names and answers.is_floating_point():
            raise InputError(f"the task `{self.task.name}` does not answer with class numbers; leave out `names`")
        said = [np.array(known)[answer].tolist() for answer in answers.numpy()] if names else answers
        return said[0] if single else said

    def outputs(self, x: Any) -> Tensor:
        """What the model gives for what `predict` takes, on the CPU: logits (n, classes) where the task has classes."""
        outputs, single = self._outputs(x)
        return (outputs[0] if single else outputs).cpu()

    def _outputs(self, x: Any) -> tuple[Tensor, bool]:
        """The outputs (n, ...), and whether `x` is one sample."""
        if self.takes_several:
            return self._judged(self._as_several(x)), False
        batch = as_inputs(x, self.names, getattr(torch, self.task.inputs), self.device)
        shape = (len(self.names.raw),) if self.names.rules else self.shape
        alike = shape[:1] if self.task.infers else shape  # channels alone, where sizes may differ
        single = batch.ndim == len(shape) and tuple(batch.shape[: len(alike)]) == alike
        if not single and (batch.ndim != len(shape) + 1 or tuple(batch.shape[1 : len(alike) + 1]) != alike):
            wanted = ("n", *shape)
            raise InputError(f"model {self.name} takes ({', '.join(map(str, wanted))}), not {tuple(batch.shape)}")
        batch = self.standard(self.names.with_flags(batch)) if self.standard else batch
        return self._judged(batch[None] if single else batch), single

    def _judged(self, inputs: Any) -> Tensor:
        self.train(False)
        with torch.inference_mode():
            outputs = self.task.inferred(self.forward, inputs)
        if bool((wrong := outputs.isnan().flatten(1).any(1)).any()):
            row = int(wrong.byte().argmax()) + 1
            raise InputError(f"model {self.name} has no answer to row {row} of the inputs; are its values too large?")
        return outputs

    def _as_several(self, x: Any) -> Any:
        """Several inputs as the model takes them; InputError where they do not fit."""
        shapes = self.shape if isinstance(self.shape, dict) else dict(enumerate(self.shape))
        given = x if isinstance(x, Mapping) else dict(enumerate(x)) if isinstance(x, tuple | list) else {}
        if given.keys() != shapes.keys():
            has = ", ".join(map(str, given)) or f"one {type(x).__name__}"
            raise InputError(f"model {self.name} takes the inputs {', '.join(map(str, shapes))}, not {has}")
        kinds = {key: getattr(torch, dtype) for key, dtype in zip(shapes, self.dtypes, strict=True)}
        made = {key: _as_tensor(given[key], kind, self.device) for key, kind in kinds.items()}
        for key, one in made.items():
            if not one.ndim or (tuple(one.shape[1:]) != shapes[key] and not self.task.infers):
                wanted = ", ".join(map(str, ("n", *shapes[key])))
                raise InputError(f"model {self.name} takes the input {key} as ({wanted}), not {tuple(one.shape)}")
        if len(sizes := {*map(len, made.values())}) > 1:
            raise InputError(f"the inputs have {', '.join(map(str, sorted(sizes)))} samples; give as many of each")
        return made if isinstance(self.shape, dict) else tuple(made.values())

    def rebind(self) -> None:
        """Take back buffers that a module of the user's assigned anew instead of updating them in place.

        InputError if the module has changed what is frozen: it travels nowhere and would be lost.
        """
        rebind(self.module, self.layout, self.vector)
        self._check_frozen()
        self.counters = counter_buffers(self.module, self.frozen)

    def state(self) -> dict[str, Tensor]:
        """Every parameter and persistent buffer by name, in its own shape and dtype: do not write into them."""
        own = {entry.name: entry.view(self.vector).to(getattr(torch, entry.dtype)) for entry in self.layout}
        return own | self.counters | self.frozen

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy in what `state` gave; names and shapes must be the model's own (InputError)."""
        own = self.state()
        differing = sorted(own.keys() ^ state.keys()) or [k for k in own if own[k].shape != state[k].shape]
        if differing:
            raise InputError(f"these are not the tensors of model {self.name}: {differing[0]} differs")
        self.copy_from(state)

    @torch.no_grad()
    def copy_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these in, each under the name and with the shape of one of `state`'s."""
        places = {entry.name: entry.view(self.vector) for entry in self.layout} | self.counters | self.frozen
        for name, tensor in tensors.items():
            places[name].copy_(tensor)
        self._versions = write_counts(self.frozen)
        self.__dict__.pop("frozen_sha256", None)

    def _check_frozen(self) -> None:
        for name, tensor in self.frozen.items():
            layer, key = owner_of(self.module, name)
            if getattr(layer, key) is not tensor or write_counts({name: tensor}) != {name: self._versions[name]}:
                raise InputError(
                    f"model {self.name}: {name} asks for no gradient, and training has changed it; make it a buffer of "
                    "a layer that learns, which travels, or leave it as it is"
                )

    @cached_property
    def frozen_sha256(self) -> str:
        """SHA-256 in hex over names, shapes, dtypes and bytes of what is frozen; empty if nothing is."""
        return named_sha256(self.frozen) if self.frozen else ""

    def sha256(self) -> str:
        """SHA-256 in hex over all parameters and persistent buffers, whatever their layout in memory.

        It takes each tensor's bytes, contiguous and little-endian, in the order of the sorted names, nothing
        between, so that anyone gets it from the arrays of a model.safetensors: `for name in sorted(arrays):
        digest.update(arrays[name].tobytes())`.
        """
        return content_sha256(self.state())
