"""The optimisers a phase can name, as plain settings: a protocol's own, and any of torch's."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Self

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from peer.errors import nearest
from peer.learning.training.arguments import UNTAKEN, as_arguments, check_arguments, why_untaken
from peer.settings import Settings

Kind = type[Any]
"""Of `torch.optim.Optimizer`; what their constructors take differs."""
KINDS: dict[str, Kind] = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
UNFIT = {
    "LBFGS": "calls for the loss of a batch several times in a step",
    "SparseAdam": "wants sparse gradients",
}
"""What of torch.optim cannot train here, and why."""
OURS = ("params", "capturable", "differentiable")
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
    """One of torch.optim by its name, with that one's own arguments beside it:
    `{name: AdamW, weight_decay: 0.01}`, or in code `Optimiser(name="AdamW", lr=0.001, weight_decay=0.01)`."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A class of torch.optim. `LBFGS` and `SparseAdam` cannot train here."""
    lr: Annotated[float, Field(gt=0, le=1_000)] | None = None
    """Learning rate. Not given: the protocol's own."""
    groups: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Other arguments for some parameters, by a pattern of their names, of which the first that fits counts:
    `{"*.bias": {weight_decay: 0}}`."""

    @model_validator(mode="after")
    def _can_train(self) -> Self:
        if self.name not in KINDS:
            raise ValueError(f"unknown optimiser `{self.name}`; {nearest(self.name, [*{*KINDS} - {*UNFIT}])}")
        if self.name in UNFIT:
            raise ValueError(f"`{self.name}` {UNFIT[self.name]}, which training here does not; name another optimiser")
        self._check(self.arguments)
        for pattern, arguments in self.groups.items():
            try:
                self._check(arguments)
            except ValueError as error:
                raise ValueError(f"`groups`, `{pattern}`: {error}") from None
        return self

    def _check(self, arguments: Mapping[str, Any]) -> None:
        kind, given = KINDS[self.name], {**self.arguments, **arguments}
        check_arguments(self.name, kind, arguments, OURS)
        try:
            _made(kind, given)
        except UNTAKEN as error:
            raise ValueError(why_untaken(self.name, partial(_made, kind), given, error)) from None

    @property
    def arguments(self) -> dict[str, Any]:
        """What is given beside the name, as the class takes it."""
        given = {} if self.lr is None else {"lr": self.lr}
        return given | as_arguments(self.model_extra or {})


AnyOptimiser = Adam | SGD | Optimiser


def kind_of(settings: AnyOptimiser) -> Kind:
    """torch's class."""
    return KINDS[settings.name if isinstance(settings, Optimiser) else type(settings).__name__]


def options_of(settings: AnyOptimiser) -> dict[str, Any]:
    """Its arguments: of a protocol's own the fused kernel, which is one a step; of a named one torch's defaults."""
    return settings.arguments if isinstance(settings, Optimiser) else {"fused": True, **asdict(settings)}


def stand_in(kind: Kind, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimiser of that kind that trains nothing."""
    made: torch.optim.Optimizer = kind([{"params": [torch.zeros(1, 1, requires_grad=True)], **one} for one in groups])
    return made


def _made(kind: Kind, arguments: Mapping[str, Any]) -> object:
    return kind([torch.zeros(1, 1, requires_grad=True)], **arguments)


def plain(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of an optimiser's state of one parameter; ValueError for anything that a checkpoint cannot hold."""
    if odd := next((key for key, value in state.items() if value is not None and not isinstance(value, Tensor)), None):
        raise ValueError(f"it keeps `{odd}`, which is no tensor and cannot be part of a checkpoint")
    return {key: value for key, value in state.items() if value is not None}
