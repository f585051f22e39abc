"""The optimisers a phase can name, as plain settings, and those that live on across rounds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.model.model import Model, Part


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


Optimiser = Adam | SGD
_KINDS: dict[type[Optimiser], type[torch.optim.Adam | torch.optim.SGD]] = {
    Adam: torch.optim.Adam,
    SGD: torch.optim.SGD,
}


class Optimisers:
    """torch's fused optimisers over the flat slices of one model, kept by name from phase to phase.

    A slice of parameters is one nn.Parameter for the optimiser, whose `grad` is the same slice of the
    gradient: a step is one kernel, however many layers there are.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._kept: dict[str, tuple[Part, torch.optim.Optimizer]] = {}
        self._loaded: dict[str, Tensor] = {}

    def get(self, part: Part, settings: Optimiser, keep: str | None) -> torch.optim.Optimizer:
        """The optimiser kept under that name, given this phase's settings; a new one if there is none yet."""
        if keep is None:
            return self._new(part, settings)
        if keep not in self._kept:
            self._kept[keep] = (part, self._new(part, settings))
            self._restore(keep, self._kept[keep][1])
        kept_part, optimiser = self._kept[keep]
        if kept_part != part or type(optimiser) is not _KINDS[type(settings)]:
            raise ValueError(f"optimiser {keep} is kept for another part or of another kind")
        for group in optimiser.param_groups:
            group.update(asdict(settings))
        return optimiser

    def drop(self, keep: str) -> None:
        """Forget an optimiser and its state; nothing happens if there is none of that name."""
        self._kept.pop(keep, None)
        self._loaded = {key: t for key, t in self._loaded.items() if key.rsplit("/", 2)[0] != keep}

    def state(self) -> dict[str, Tensor]:
        """Copies of all kept state on the CPU, by `<name>/<slice number>/<field>`."""
        # Copies of these too: a phase takes them up and changes them while the checkpoint is still being written.
        state = {key: tensor.to("cpu", copy=True) for key, tensor in self._loaded.items()}
        for keep, (_, optimiser) in self._kept.items():
            for number, parameter in enumerate(optimiser.param_groups[0]["params"]):
                fields = optimiser.state.get(parameter, {}).items()
                state |= {f"{keep}/{number}/{f}": t.to("cpu", copy=True) for f, t in fields if t is not None}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace all kept state; each optimiser takes up its own when a phase first names it."""
        self._kept.clear()
        self._loaded = {key: tensor.clone() for key, tensor in state.items()}

    def _new(self, part: Part, settings: Optimiser) -> torch.optim.Optimizer:
        parameters = [nn.Parameter(self._model.vector[where]) for where in self._model.trainable(part)]
        for parameter, where in zip(parameters, self._model.trainable(part), strict=True):
            parameter.grad = self._model.gradient[where]
        return _KINDS[type(settings)](parameters, fused=True, **asdict(settings))

    def _restore(self, keep: str, optimiser: torch.optim.Optimizer) -> None:
        parameters: list[Tensor] = optimiser.param_groups[0]["params"]
        for key in [key for key in self._loaded if key.rsplit("/", 2)[0] == keep]:
            _, number, field = key.rsplit("/", 2)
            tensor = self._loaded.pop(key)
            fits = int(number) < len(parameters) and tensor.numel() in (1, parameters[int(number)].numel())
            if not fits:
                raise InputError(
                    f"the checkpoint's optimiser state {key} belongs to another model; discard the checkpoint"
                )
            optimiser.state[parameters[int(number)]][field] = tensor.to(self._model.device)
