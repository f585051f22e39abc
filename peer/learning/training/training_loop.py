"""Local training by a loop of the user's own: `training.loop`, called once for each phase, with the live model.

`TrainingLoop` is what the function is given. Around the call stands what every protocol relies on: what rests in the
phase stays as it is, whoever calls `train()` on the whole module; a protocol's correction is added to the gradient
before each step of any of torch's optimisers; random numbers repeat; and the module's tensors are views of the model's
vector again afterwards, wherever a framework has put them.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, get_worker_info

from peer.errors import InputError
from peer.learning.data.samples import Batch, Samples
from peer.learning.device import device_errors
from peer.learning.model.layout import ModelPart, rebind
from peer.learning.model.model import Model
from peer.learning.named_tensors import NamedTensors
from peer.learning.randomness import derive
from peer.learning.training.optimiser import kind_of, options_of, plain_state
from peer.learning.training.phase import Phase
from peer.plugins import reference, user_code_errors

MAX_FIGURES = 64
"""Figures that a loop may return; each is in every round's event."""
FIGURE_NAME = r"[A-Za-z_][\w.-]{0,63}"


class SampleDataset(Dataset[tuple[Any, Tensor]]):
    """A peer's samples one by one, (input, target) each, for a `DataLoader` or a trainer: on the model's device.

    Random transforms draw anew each time a sample is read, from a stream that repeats.
    """

    def __init__(self, samples: Samples, seed: int, check_stop: Callable[[], None]) -> None:
        self._samples, self._seed, self._check_stop = samples, seed, check_stop
        self._reads = 0

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Tensor]]:
        """Several at once, as torch's loaders ask for them."""
        if get_worker_info() is not None:
            raise RuntimeError(
                "a peer's samples are not read by a loader's own workers: write num_workers=0; `loop.batches()` reads "
                "ahead with `data.workers`"
            )
        self._check_stop()
        positions = torch.tensor([range(len(self))[int(index)] for index in indices], device=self._samples.device)
        self._reads += 1
        with closing(self._samples.drawn([positions], derive(self._seed, self._reads))) as read:
            batch = next(read)
        if any(len(one) != len(indices) for one in tree_leaves(batch.inputs)):
            raise RuntimeError("`collate` makes several inputs of a sample; use `loop.batches()`")
        numbers = range(len(indices))
        return [(tree_map(itemgetter(at), batch.inputs), batch.targets[at]) for at in numbers]


class PhaseSamples(NamedTuple):
    """What one phase trains on."""

    samples: Samples
    batches: Callable[[int], Iterator[Batch]]
    """Gives those of the next epoch, of so many samples each, as they are drawn."""
    round: int
    seed: int
    """Of the phase's stream of random numbers."""


class Trained(NamedTuple):
    """What a loop returned."""

    loss: float | None
    """The mean training loss, which may be anything but a number if training diverged; None if it gave none."""
    figures: Mapping[str, float]
    """What else it gave, by name."""


class TrainingLoop:
    """What a training loop of one's own is given, once for each phase: called as `function(loop)`.

    It trains `model` where it is. It returns nothing, the mean training loss, or a dict of numbers with `loss` among
    them. Torch's generator, NumPy's and Python's begin a stream of their own; a trainer that seeds by itself takes
    `seed`.
    """

    def __init__(
        self,
        model: Model,
        phase: Phase,
        drawn: PhaseSamples,
        state: NamedTensors,
        check_stop: Callable[[], None],
    ) -> None:
        """check_stop: raises what ends the training of a peer that is told to end."""
        self._model, self._phase, self._batches = model, phase, drawn.batches
        self._check_stop, self._kept = check_stop, list[Optimizer]()
        self.model: nn.Module = model.module
        """The live module. What the phase trains asks for a gradient; the rest does not, and rests."""
        self.device = model.device
        self.loss: Callable[[Tensor, Tensor], Tensor] = model.task.loss
        """Of outputs and targets: the task's mean loss, of shape ()."""
        self.part: ModelPart = phase.part
        """What is trained: `model`, `extractor` or `head`."""
        self.round = drawn.round
        """From 1."""
        self.epochs = phase.epochs
        self.batch_size = phase.batch_size
        self.lr: float | None = phase.optimiser.lr
        """The protocol's learning rate; None where its optimiser has torch's default."""
        self.data = SampleDataset(drawn.samples, derive(drawn.seed, "data"), check_stop)
        """The training samples."""
        self.state = state
        """Tensors by name that live on through all phases and rounds; part of the checkpoint."""
        self.seed = drawn.seed % 2**32
        """The same in each run, and another in each phase, each round and at each peer."""
        self.steps = 0
        """Steps of optimisers on the model so far."""
        self._others = 0
        """Steps of optimisers on anything else."""

    def batches(self, size: int | None = None) -> Iterator[Batch]:
        """The batches of one epoch, each time in another order, on the model's device: inputs, targets, positions.

        size: else the protocol's `batch_size`.
        """
        drawn = self._batches(size or self.batch_size)  # now: one may be under way while another is asked for

        def checked() -> Iterator[Batch]:
            for batch in drawn:
                self._check_stop()
                yield batch

        return checked()

    def optimiser(self) -> Optimizer:
        """A new optimiser of the model, as the protocol has it; where its state lives on from round to round, kept."""
        settings = self._phase.optimiser
        learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        made: Optimizer = kind_of(settings)(learning, **options_of(settings))
        if self._phase.keep is not None:
            self.keep(made)
        return made

    def keep(self, optimiser: Optimizer) -> None:
        """Let an optimiser go on from the state that it had after the last round, and keep its state for the next."""
        if optimiser.state:
            raise ValueError("`loop.keep` takes an optimiser before its first step")
        number = len(self._kept)
        self._kept.append(optimiser)
        found = dict[int, dict[str, Tensor]]()
        for key, tensor in self.state.items():
            if key.startswith(f"{place_of(self.part, self._phase.keep, number)}/"):
                index, field = key.rsplit("/", 2)[1:]
                found.setdefault(int(index), {})[field] = tensor.clone()
        if found:
            optimiser.load_state_dict(optimiser.state_dict() | {"state": found})

    def run(self, function: Callable[..., Any]) -> Trained:
        """Call the function; UserCodeError if it raises, InputError if it left the model as no phase may."""
        for entry in self._model.entries(self.part):
            if entry.dtype != "float32":
                raise InputError(
                    f"model {self._model.name}: {entry.name} is {entry.dtype}, and `training.loop` trains float32 "
                    "alone; write `dtype: float32` into `model`, or leave out `loop`"
                )
        name, resting, before = reference(function), self._resting(), self._model.vector.clone()
        structure = _structure(self.model)
        try:
            with user_code_errors(name), device_errors(), torch.enable_grad(), self._prepared():
                returned = _taken(function(self))
                for number, optimiser in enumerate(self._kept):
                    self._store(number, optimiser)
                if why := self.state.aliasing_problem(self._model.vector):
                    raise ValueError(f"it {why}")
        finally:
            self._check_stop()  # first: what stops a loop is raised inside it
        _check_structure(name, structure, self.model)
        self.model.to(self.device)
        self._model.rebind()
        if self._others and not self.steps and _same(self._model.vector, before):
            raise InputError(f"`{name}` has trained something else; train `loop.model` itself, and not a copy of it")
        if any(not _same(self._model.vector[where], before[where]) for where in resting):
            raise InputError(
                f"`{name}` has changed what rests while the {self.part} is trained; train what asks for a gradient "
                "alone (`p.requires_grad`), as it comes"
            )
        if self._phase.gradient_hook is not None and not self.steps:
            raise InputError(
                f"`{name}` trains without an optimiser of torch on `loop.model`, and this protocol corrects each "
                "gradient before such an optimiser's step; train `loop.model` itself, by a torch.optim optimiser"
            )
        return returned

    def _resting(self) -> list[slice]:
        """The places of what this phase leaves as it is."""
        trained, whole = self._model.part(self.part), len(self._model.vector)
        return [one for one in (slice(0, trained.start), slice(trained.stop, whole)) if one.start < one.stop]

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """The part learns in the block and no gradient is left of before; what rests does, and steps are seen."""
        self._model.learn(self.part)
        learning = {*map(id, self._model.layers(self.part))}
        learning |= {id(self.model)} if self.part == "model" else set()
        resting = [layer for layer in self.model.modules() if id(layer) not in learning]
        for layer in resting:
            layer.train = partial(_rest, layer)  # type: ignore[method-assign]
        for parameter in self.model.parameters():
            parameter.grad = None
        watching = register_optimizer_step_pre_hook(self._before_step)
        try:
            yield
        finally:
            watching.remove()
            for layer in resting:
                vars(layer).pop("train", None)

    def _before_step(self, optimiser: Optimizer, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Called before each step of any optimiser in the process; changes those of this model."""
        ours = {id(parameter) for parameter in self.model.parameters()}
        stepped = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]} & ours
        if not stepped:
            self._others += 1
            return None
        self._check_stop()
        self.steps += 1
        if self._phase.gradient_hook is None:
            return None
        closure = named.get("closure") or (given[1] if len(given) > 1 else None)
        scale = getattr(optimiser, "grad_scale", None)  # of a GradScaler, whose division fused optimisers do themselves
        if closure is None:
            self._correct(stepped, scale)
            return None

        def corrected() -> Any:
            loss = closure()  # which does the backward pass, as Lightning's does
            self._correct(stepped, scale)
            return loss

        return (given[0], corrected), {}

    @torch.no_grad()
    def _correct(self, stepped: Collection[int], scale: Tensor | None) -> None:
        """Let the protocol change the gradient of the parameters that are stepped, of which `stepped` has the ids."""
        model, where = self._model, self._model.part(self.part)
        rebind(self.model, model.layout, model.vector)  # a loop may have given a parameter other `data`
        flat = torch.zeros_like(model.gradient)
        learning = [entry for entry in model.entries(self.part) if entry.trainable]
        parameters = [(self.model.get_parameter(entry.name), entry.view(flat)) for entry in learning]
        for parameter, values in parameters:
            if parameter.grad is not None:
                values.copy_(parameter.grad)
        if scale is not None:
            flat.div_(scale)
        self._phase.correct(model.vector[where], flat[where])
        if scale is not None:
            flat.mul_(scale)
        for parameter, values in parameters:
            if id(parameter) in stepped:
                parameter.grad = values.clone() if parameter.grad is None else parameter.grad.copy_(values)

    def _store(self, number: int, optimiser: Optimizer) -> None:
        place = place_of(self.part, self._phase.keep, number)
        for key in [key for key in self.state if key.startswith(f"{place}/")]:
            del self.state[key]
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            for field, tensor in plain_state(optimiser.state.get(parameter, {})).items():
                self.state[f"{place}/{index}/{field}"] = tensor.detach().clone()


def place_of(part: ModelPart, keep: str | None, number: int | str = "") -> str:
    """Where the state of a phase's optimiser stands, kept under that name, or the beginning of all such places."""
    return f"{part} {keep or ''} optimiser {number}"


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two float32 tensors have the same bits, NaN included."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


Structure = dict[str, tuple[Any, ...]]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _structure(module: nn.Module) -> Structure:
    """By each layer's name its class, the names of what it holds, its hooks, and whether its `forward` is patched."""
    return {
        name: (
            type(layer),
            {key: (one.dtype, tuple(one.shape)) for key, one in layer._parameters.items() if one is not None},
            [*layer._buffers],
            [len(vars(layer).get(hooks) or ()) for hooks in HOOKS],
            vars(layer).get("forward"),
        )
        for name, layer in module.named_modules()
    }


def _check_structure(name: str, before: Structure, module: nn.Module) -> None:
    """Undo patches of `forward`, as Accelerate's; InputError for other changes, of which no checkpoint would know."""
    for path, layer in module.named_modules():
        vars(layer).pop("forward", None)
        if path in before and before[path][-1] is not None:
            layer.forward = before[path][-1]
    after = _structure(module)
    for path in before | after:
        if before.get(path) != after.get(path):
            where = f"`loop.model.{path}`" if path else "`loop.model`"
            raise InputError(
                f"`{name}` has left {where} with other layers, tensors, types or hooks than it had; take them out "
                "before the loop returns, or build the model with them"
            )


def _rest(layer: nn.Module, mode: bool = True) -> nn.Module:
    """`train` of a layer that rests: the layers in it may learn."""
    layer.training = False
    for child in layer.children():
        child.train(mode)
    return layer


def _taken(returned: Any) -> Trained:
    """What a loop returned; ValueError for anything but nothing, a number, or numbers by name."""
    named = returned if isinstance(returned, Mapping) else {"loss": returned}
    if len(named) > MAX_FIGURES:
        raise ValueError(f"it gives {len(named)} figures; give at most {MAX_FIGURES}")
    figures = dict[str, float]()
    for name, value in named.items():
        if not (isinstance(name, str) and re.fullmatch(FIGURE_NAME, name)) or name in ("round", "local_steps"):
            raise ValueError(f"it gives a figure {name!r:.80}; take letters, digits and `_`, not round or local_steps")
        if value is not None:
            try:
                figures[name] = float(value.detach() if isinstance(value, Tensor) else value)
            except (TypeError, ValueError, RuntimeError):
                raise ValueError(
                    f"it must return nothing, its mean loss, or a dict of numbers, and `{name}` is a "
                    f"{type(value).__name__}"
                ) from None
    return Trained(figures.pop("loss", None), figures)
