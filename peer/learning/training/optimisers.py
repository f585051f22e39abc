"""Optimisers bound to one model, and those that live on across phases and rounds."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.model.layout import Entry, joined
from peer.learning.model.model import Model, Part
from peer.learning.training.optimiser import AnyOptimiser, Optimiser, kind_of, options_of, plain
from peer.learning.transfer import copies

ELEMENTWISE = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
)
"""For which it is all the same whether tensors lie in one parameter or in several: a step is a few kernels, however
many layers there are. All others get each tensor in its own shape, as they look at norms, rows or matrices."""
ON_THE_CPU = ("step", "mu_product")
"""Fields of the state that torch keeps on the CPU, whatever the model's device, but for its fused kernels."""


class Optimisers:
    """Optimisers of one model, kept by name from phase to phase.

    Their parameters are views into the model's vector, their `grad` the same places of its gradient.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._kept: dict[str, tuple[Part, torch.optim.Optimizer]] = {}
        self._loaded: dict[str, Tensor] = {}

    def get(self, part: Part, settings: AnyOptimiser, keep: str | None) -> torch.optim.Optimizer:
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
                fields = plain(optimiser.state.get(parameter, {})).items()
                state |= {f"{keep}/{number}/{name}": tensor for name, tensor in fields}
        return copies(state)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace all kept state; each optimiser takes up its own when a phase first names it."""
        self._kept.clear()
        self._loaded = {key: tensor.clone() for key, tensor in state.items()}

    def _new(self, part: Part, settings: AnyOptimiser) -> torch.optim.Optimizer:
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

    def _groups(self, part: Part, settings: AnyOptimiser) -> list[tuple[list[Entry], dict[str, Any]]]:
        """The part's trainable tensors and how they are trained: those of no pattern first."""
        patterns = settings.groups if isinstance(settings, Optimiser) else {}
        options = options_of(settings)
        found: dict[str | None, list[Entry]] = {None: [], **{pattern: [] for pattern in patterns}}
        for entry in self._model.entries(part):
            if entry.trainable and entry.size:
                fitting = (pattern for pattern in patterns if fnmatchcase(entry.name, pattern))
                found[next(fitting, None)].append(entry)
        return [(entries, options | (patterns[key] if key else {})) for key, entries in found.items() if entries]

    def _bind(self, entries: list[Entry], *, flat: bool) -> list[nn.Parameter]:
        vector, gradient = self._model.vector, self._model.gradient
        if not flat:
            return [_parameter(entry.view(vector), entry.view(gradient)) for entry in entries]
        return [_parameter(vector[where], gradient[where]) for where in joined(entries)]

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
