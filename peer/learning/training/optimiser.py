"""Optimisers: what a phase can name, as plain settings, and the ones bound to a model that live on across phases.

A protocol has its own `Adam` or `SGD`; a federation's settings may name any class of torch.optim with its own
arguments. What is wrong with arguments that a user gives to a class of torch's, here and for schedulers, is told in
one sentence that names them. `KeptOptimisers` binds such settings to the tensors of one model, keeps their state by
name, and gives it to a checkpoint and takes it back.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Self

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn

from peer.errors import InputError, suggest
from peer.learning.device import copies
from peer.learning.model.layout import ModelPart, TensorSlot, joined_slices, matches
from peer.learning.model.model import Model
from peer.plugins import call_problem
from peer.settings import Settings

ARGUMENT_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, LookupError)
"""What torch's classes raise for arguments, many of which they do not look at closely."""
Maker = Callable[[Mapping[str, Any]], object]
"""Makes something of the class, and may try it."""


def check_arguments(name: str, kind: type, given: Mapping[str, Any], ours: tuple[str, ...]) -> None:
    """ValueError for an argument that the class does not have, that is not the user's to give, that is text in vain, or
    that is lacking."""
    if why := call_problem(kind, given, "write it beside the name", ours):
        raise ValueError(f"`{name}` {why}")
    known = inspect.signature(kind).parameters
    for key, value in given.items():
        values = value if isinstance(value, list | tuple) else (value,)
        text = next((one for one in values if isinstance(one, str)), None)
        if text is not None and key in known and not isinstance(known[key].default, str | None):
            raise ValueError(f"`{name}` takes no text as `{key}`, and it is {text!r}; write a number")


def argument_problem(name: str, make: Maker, given: Mapping[str, Any], error: Exception) -> str:
    """What is wrong, in torch's words, with the arguments without any one of which it would do; or with all."""
    blamed = [key for key in given if can_be_made(make, {other: given[other] for other in given if other != key})]
    shown = ", ".join(f"`{key}: {json.dumps(given[key], default=str)}`" for key in blamed or given) or "no arguments"
    return f"`{name}` does not work with {shown}: {str(error).rstrip('.') or type(error).__name__}"


def can_be_made(make: Maker, given: Mapping[str, Any]) -> bool:
    """Whether it can be made with these."""
    try:
        make(given)
    except ARGUMENT_ERRORS:
        return False
    return True


def as_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as the tuples that torch's classes take."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


Kind = type[Any]
"""A subclass of `torch.optim.Optimizer`; their constructors differ."""


def uncompiled(kind: Kind) -> Kind:
    """torch's class without its wrappers for torch.compile, which would import the compiler at the first step: as long
    again as the import of torch."""
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "step")}
    return type(kind.__name__, (kind,), {**bare, "step": torch.no_grad()(bare["step"])})


OPTIMISERS: dict[str, Kind] = {
    name: uncompiled(kind)
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
UNSUPPORTED_OPTIMISERS = {
    "LBFGS": "calls for the loss of a batch several times in a step",
    "SparseAdam": "wants sparse gradients",
}
"""What of torch.optim cannot train here, and why."""
RESERVED_ARGUMENTS = ("params", "capturable", "differentiable")
"""Arguments that are not the user's to choose."""


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015), `betas` its β₁ and β₂, ε = 1e-8; `weight_decay` is added to the gradient."""

    lr: float = 0.01
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class SGD:
    """v ← momentum·v + g + weight_decay·w, w ← w − lr·v: no dampening, no Nesterov."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0


class Optimiser(Settings):
    """A [class of torch.optim](training.md#optimiser-and-scheduler) with its arguments: `{name: AdamW, weight_decay:
    0.01}`."""

    model_config = ConfigDict(extra="allow")

    name: str
    """The class."""
    lr: Annotated[float, Field(gt=0, le=1_000)] | None = None
    """Learning rate. Default: the protocol's."""
    groups: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Other arguments by parameter name pattern, the first that matches: `{"*.bias": {weight_decay: 0}}`."""

    @model_validator(mode="after")
    def _can_train(self) -> Self:
        if self.name not in OPTIMISERS:
            raise ValueError(
                f"unknown optimiser `{self.name}`; {suggest(self.name, [*{*OPTIMISERS} - {*UNSUPPORTED_OPTIMISERS}])}"
            )
        if self.name in UNSUPPORTED_OPTIMISERS:
            raise ValueError(
                f"`{self.name}` {UNSUPPORTED_OPTIMISERS[self.name]}, which training here does not; "
                f"name another optimiser"
            )
        self._check(self.arguments)
        for pattern, arguments in self.groups.items():
            try:
                self._check(arguments)
            except ValueError as error:
                raise ValueError(f"`groups`, `{pattern}`: {error}") from None
        return self

    def _check(self, arguments: Mapping[str, Any]) -> None:
        kind, given = OPTIMISERS[self.name], {**self.arguments, **arguments}
        check_arguments(self.name, kind, arguments, RESERVED_ARGUMENTS)
        try:
            _made(kind, given)
        except ARGUMENT_ERRORS as error:
            raise ValueError(argument_problem(self.name, partial(_made, kind), given, error)) from None

    @property
    def arguments(self) -> dict[str, Any]:
        """What is given beside the name, as the class takes it."""
        given = {} if self.lr is None else {"lr": self.lr}
        return given | as_arguments(self.model_extra or {})


AnyOptimiser = Adam | SGD | Optimiser


def kind_of(settings: AnyOptimiser) -> Kind:
    """torch's class."""
    return OPTIMISERS[settings.name if isinstance(settings, Optimiser) else type(settings).__name__]


def options_of(settings: AnyOptimiser) -> dict[str, Any]:
    """Return its arguments: for `Adam` and `SGD` the fused kernel, one per step; for a named one torch's defaults."""
    return settings.arguments if isinstance(settings, Optimiser) else {"fused": True, **asdict(settings)}


def stand_in(kind: Kind, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimiser of that kind that trains nothing."""
    made: torch.optim.Optimizer = kind([{"params": [torch.zeros(1, 1, requires_grad=True)], **one} for one in groups])
    return made


def _made(kind: Kind, arguments: Mapping[str, Any]) -> object:
    return kind([torch.zeros(1, 1, requires_grad=True)], **arguments)


def plain_state(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of an optimiser's state of one parameter; ValueError for anything that a checkpoint cannot hold."""
    if odd := next((key for key, value in state.items() if value is not None and not isinstance(value, Tensor)), None):
        raise ValueError(f"it keeps `{odd}`, which is not a tensor and cannot be part of a checkpoint")
    return {key: value for key, value in state.items() if value is not None}


ELEMENTWISE = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
)
"""Optimisers whose result is the same whether tensors lie in one parameter or several: a step is a few kernels, however
many layers there are. All others get each tensor in its own shape, as they look at norms, rows or matrices."""
ON_THE_CPU = ("step", "mu_product")
"""Fields of the state that torch keeps on the CPU, whatever the model's device, but for its fused kernels."""


class KeptOptimisers:
    """Optimisers of one model, kept by name from phase to phase.

    Their parameters are views into the model's vector, their `grad` the same places of its gradient.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._kept: dict[str, tuple[ModelPart, torch.optim.Optimizer]] = {}
        self._loaded: dict[str, Tensor] = {}

    def get(self, part: ModelPart, settings: AnyOptimiser, keep: str | None) -> torch.optim.Optimizer:
        """The optimiser kept under that name, given this phase's settings; a new one if there is none yet."""
        if keep is None:
            return self._new(part, settings)
        if keep not in self._kept:
            self._kept[keep] = (part, self._new(part, settings))
            self._restore(keep, self._kept[keep][1])
        kept_part, optimiser = self._kept[keep]
        if kept_part != part or type(optimiser) is not kind_of(settings):
            raise ValueError(f"optimiser {keep} is kept for another part or of another kind")
        for group, (_, options) in zip(optimiser.param_groups, self._groups(part, settings), strict=True):
            group.update(options)
        return optimiser

    def drop(self, keep: str) -> None:
        """Forget an optimiser and its state; nothing happens if there is none of that name."""
        self._kept.pop(keep, None)
        self._loaded = {key: t for key, t in self._loaded.items() if key.rsplit("/", 2)[0] != keep}

    def state(self) -> dict[str, Tensor]:
        """Copies of all kept state on the CPU, by `<name>/<parameter's number>/<field>`."""
        # Copies of these too: a phase takes them up and changes them while the checkpoint is still being written.
        state = dict(self._loaded)
        for keep, (_, optimiser) in self._kept.items():
            for number, parameter in enumerate(_parameters(optimiser)):
                fields = plain_state(optimiser.state.get(parameter, {})).items()
                state |= {f"{keep}/{number}/{name}": tensor for name, tensor in fields}
        return copies(state)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace all kept state; each optimiser takes up its own when a phase first names it."""
        self._kept.clear()
        self._loaded = {key: tensor.clone() for key, tensor in state.items()}

    def _new(self, part: ModelPart, settings: AnyOptimiser) -> torch.optim.Optimizer:
        kind = kind_of(settings)
        groups = [
            {"params": self._bind(entries, flat=kind.__name__ in ELEMENTWISE), **options}
            for entries, options in self._groups(part, settings)
        ]
        try:
            made: torch.optim.Optimizer = kind(groups)
            return made
        except (ValueError, TypeError) as error:
            raise InputError(
                f"optimiser `{kind.__name__}` does not go with model {self._model.name}: {error}; name another one"
            ) from error

    def _groups(self, part: ModelPart, settings: AnyOptimiser) -> list[tuple[list[TensorSlot], dict[str, Any]]]:
        """The part's trainable tensors and how they are trained: those of no pattern first."""
        patterns = settings.groups if isinstance(settings, Optimiser) else {}
        options = options_of(settings)
        found: dict[str | None, list[TensorSlot]] = {None: [], **{pattern: [] for pattern in patterns}}
        for entry in self._model.entries(part):
            if entry.trainable and entry.size:
                fitting = (pattern for pattern in patterns if matches(entry.name, (pattern,)))
                found[next(fitting, None)].append(entry)
        return [(entries, options | (patterns[key] if key else {})) for key, entries in found.items() if entries]

    def _bind(self, entries: list[TensorSlot], *, flat: bool) -> list[nn.Parameter]:
        vector, gradient = self._model.vector, self._model.gradient
        if not flat:
            return [_parameter(entry.view(vector), entry.view(gradient)) for entry in entries]
        return [_parameter(vector[where], gradient[where]) for where in joined_slices(entries)]

    def _restore(self, keep: str, optimiser: torch.optim.Optimizer) -> None:
        parameters = _parameters(optimiser)
        numbered = {id(p): group for group in optimiser.param_groups for p in group["params"]}
        for key in [key for key in self._loaded if key.rsplit("/", 2)[0] == keep]:
            _, number, field = key.rsplit("/", 2)
            tensor = self._loaded.pop(key)
            size = parameters[int(number)].numel() if int(number) < len(parameters) else 0
            whole = type(optimiser).__name__ in ELEMENTWISE
            if not size or not (tensor.numel() in (1, size) or (not whole and tensor.numel() < size)):
                raise InputError(
                    f"the checkpoint's optimiser state {key} belongs to another model; discard the checkpoint"
                )
            parameter = parameters[int(number)]
            apart = field in ON_THE_CPU and not numbered[id(parameter)].get("fused")
            optimiser.state[parameter][field] = tensor if apart else tensor.to(self._model.device)


def _parameter(values: Tensor, gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(values)
    parameter.grad = gradient
    return parameter


def _parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
