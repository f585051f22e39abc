"""Learning rates that change by the course of the training: any scheduler of torch.optim.lr_scheduler."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Self

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor
from torch.optim import lr_scheduler

from peer.errors import InputError, suggest
from peer.learning.training.optimiser import (
    ARGUMENT_ERRORS,
    AnyOptimiser,
    argument_problem,
    as_arguments,
    can_be_made,
    check_arguments,
    stand_in,
)
from peer.settings import Settings

SCHEDULERS: dict[str, type[Any]] = {name: getattr(lr_scheduler, name) for name in lr_scheduler.__all__}
UNSUPPORTED_SCHEDULERS = ("LRScheduler", "LambdaLR", "MultiplicativeLR")
"""These take functions, which a file of settings cannot hold."""
SCHEDULED = ("lr", "momentum", "betas")
"""What a scheduler changes in an optimiser."""
MAX_DRY_RUN_STEPS = 10_000
"""Steps for which a scheduler is tried before a run."""
Every = Literal["round", "epoch", "step"]


class Scheduler(Settings):
    """A [class of torch.optim.lr_scheduler](training.md#optimiser-and-scheduler) with its arguments: `{name:
    CosineAnnealingLR, T_max: 10}`."""

    model_config = ConfigDict(extra="allow")

    name: str
    """The class."""
    every: Every = "round"
    """Advances after each round, epoch or optimiser step."""
    schedulers: list["Scheduler"] = Field(default_factory=list)
    """Parts of `SequentialLR`, `ChainedScheduler`."""

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        known = [name for name in SCHEDULERS if name not in UNSUPPORTED_SCHEDULERS]
        if self.name not in known:
            raise ValueError(f"unknown scheduler `{self.name}`; {suggest(self.name, known)}")
        parts = {"schedulers": self.schedulers} if self.schedulers else {}
        check_arguments(self.name, SCHEDULERS[self.name], self.arguments | parts, ("optimizer", "last_epoch"))
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """What is given beside the name, as the class takes it."""
        return dict(self.model_extra or {})

    def build(self, optimiser: torch.optim.Optimizer) -> Any:
        """Make torch's scheduler of an optimiser; ValueError if the arguments do not work."""
        try:
            return self._build(optimiser, self.arguments)
        except ARGUMENT_ERRORS as error:
            raise ValueError(self.problem(optimiser, error)) from None

    def problem(self, optimiser: torch.optim.Optimizer, error: Exception) -> str:
        """Return which of its arguments, or of its parts', do not work; the optimiser is changed."""
        for one in self.schedulers:
            if not can_be_made(partial(one._try, optimiser), one.arguments):
                return one.problem(optimiser, error)
        return argument_problem(self.name, partial(self._try, optimiser), self.arguments, error)

    def _try(self, optimiser: torch.optim.Optimizer, arguments: Mapping[str, Any]) -> None:
        made = self._build(optimiser, arguments)
        optimiser.step()  # or torch warns
        made.step(*([1.0] if isinstance(made, lr_scheduler.ReduceLROnPlateau) else []))

    def _build(self, optimiser: torch.optim.Optimizer, arguments: Mapping[str, Any]) -> Any:
        kind, parts = SCHEDULERS[self.name], [one._build(optimiser, one.arguments) for one in self.schedulers]
        if self.name == "ChainedScheduler":
            return kind(parts, optimizer=optimiser, **arguments)
        return kind(optimiser, **({"schedulers": parts} if parts else {}), **arguments)


class Schedule:
    """A scheduler's state over the phases that share an optimiser, or that train the same part with new ones.

    It runs on an optimiser of its own that trains nothing, so it outlives those that do.
    """

    def __init__(self, settings: Scheduler, like: torch.optim.Optimizer) -> None:
        """like: an optimiser as the protocol has it, whose learning rate is the first."""
        self.settings = settings
        options = [{key: group[key] for key in group if key != "params"} for group in like.param_groups]
        self._stand_in = stand_in(type(like), options)
        try:
            self._scheduler = settings.build(self._stand_in)
        except ValueError as error:
            raise InputError(f"scheduler {error}; correct `training.scheduler`") from None
        self._round, self._heard = 1, False
        self._loss: float | Tensor = float("nan")  # read when it counts: on a GPU that waits for all that is computed

    def begin(self, round: int, optimiser: torch.optim.Optimizer) -> None:
        """Begin a phase of that round with that optimiser.

        Rounds without training count, too, but not for a plateau scheduler, which goes by losses.
        """
        if self.settings.every == "round":
            plateau = isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau)
            for _ in range(self._round, round)[: int(self._heard) if plateau else None]:
                self._advance()
            self._round = max(round, self._round)
        self._apply(optimiser)

    def on_progress(self, what: Every, loss: Tensor, optimiser: torch.optim.Optimizer) -> None:
        """Advance after an epoch or a step of that mean loss."""
        if what == self.settings.every:
            self._loss = loss
            self._advance()
            self._apply(optimiser)

    def on_phase_end(self, loss: float) -> None:
        """Take a phase's mean loss."""
        self._loss, self._heard = loss, True

    def dry_run(self, times: int) -> None:
        """Advance so many times before the run, MAX_DRY_RUN_STEPS at most; InputError if it ends before."""
        ends = getattr(self._scheduler, "total_steps", times)
        if ends < times:
            raise InputError(
                f"scheduler `{self.settings.name}` ends after {ends:,} and the run may come to {times:,} "
                f"(`every: {self.settings.every}`); make it longer"
            )
        self._loss = 1.0
        for _ in range(min(times, MAX_DRY_RUN_STEPS)):
            self._advance()

    def state(self) -> dict[str, Any]:
        """Plain JSON."""
        groups = [{key: group[key] for key in ("initial_lr", *SCHEDULED) if key in group} for group in self._groups]
        course = {"round": self._round, "loss": float(self._loss), "heard": self._heard}
        return {**course, "groups": groups, "scheduler": _plain_state(self._scheduler)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._round, self._loss, self._heard = state["round"], state["loss"], state["heard"]
        for group, values in zip(self._groups, state["groups"], strict=True):
            group.update(as_arguments(values))
        _load(self._scheduler, state["scheduler"])

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._stand_in.param_groups

    def _advance(self) -> None:
        self._heard = False
        self._stand_in.step()  # does nothing, and torch warns of a scheduler that goes before its optimiser
        try:
            if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
                self._scheduler.step(float(self._loss))
            else:
                self._scheduler.step()
        except ValueError as error:
            raise InputError(f"scheduler `{self.settings.name}` has come to its end: {error}; make it longer") from None
        except ARGUMENT_ERRORS as error:
            why = self.settings.problem(self._stand_in, error)
            raise InputError(f"scheduler {why}; correct `training.scheduler`") from None

    def _apply(self, optimiser: torch.optim.Optimizer) -> None:
        for group, ours in zip(optimiser.param_groups, self._groups, strict=True):
            group.update({key: ours[key] for key in SCHEDULED if key in ours})


class Schedules:
    """The schedules of one trainer: one for each part, optimiser with its rate, and scheduler that a phase names, and
    for each name under which such an optimiser is kept."""

    def __init__(self) -> None:
        self._running: dict[str, Schedule] = {}
        self._loaded: dict[str, Any] = {}

    def get(self, key: str, settings: Scheduler, like: torch.optim.Optimizer) -> Schedule:
        """Return the schedule of a key (`key_of` its phase); a new one if there is none."""
        if key not in self._running:
            self._running[key] = Schedule(settings, like)
            if key in self._loaded:
                self._running[key].load_state(self._loaded.pop(key))
        return self._running[key]

    def drop(self, keep: str) -> None:
        """Forget the schedules of the optimisers kept under that name."""
        for schedules in (self._running, self._loaded):
            for key in [key for key in schedules if json.loads(key)[0] == keep]:
                del schedules[key]

    def state(self) -> dict[str, Tensor]:
        """Return all of them, as JSON in a tensor of bytes; nothing if there are none."""
        content = self._loaded | {key: schedule.state() for key, schedule in self._running.items()}
        text = json.dumps(content).encode()
        return {"schedules": torch.frombuffer(bytearray(text), dtype=torch.uint8)} if content else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace all; each is taken up when a phase first names it."""
        self._running.clear()
        self._loaded = json.loads(bytes(state["schedules"].tolist())) if "schedules" in state else {}


def key_of(keep: str | None, part: str, optimiser: AnyOptimiser, scheduler: Scheduler) -> str:
    """Return the key of a phase's schedule, the same after a restart."""
    return json.dumps([keep, part, repr(optimiser), repr(scheduler)])


def _plain_state(scheduler: Any) -> dict[str, Any]:
    """Return what changes of a scheduler's state: numbers and lists of numbers; its arguments make all else."""
    found = {key: value for key, value in scheduler.state_dict().items() if _is_plain(value)}
    parts = getattr(scheduler, "_schedulers", [])
    return {"own": found, "parts": [_plain_state(part) for part in parts]}


def _load(scheduler: Any, state: Mapping[str, Any]) -> None:
    vars(scheduler).update(state["own"])
    for part, of_part in zip(getattr(scheduler, "_schedulers", []), state["parts"], strict=True):
        _load(part, of_part)


def _is_plain(value: Any) -> bool:
    one = bool | int | float | str | None
    return isinstance(value, one) or (isinstance(value, list) and all(isinstance(item, one) for item in value))
