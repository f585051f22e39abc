"""Local training by a loop of the user's own: `training.loop`, called once for each phase, with the live model.

`TrainingLoop` is what the function is given. Around the call stands what every protocol relies on: what rests in the
phase stays as it is, whoever calls `train()` on the whole module; a protocol's correction is added to the gradient
before each step of any of torch's optimisers; random numbers repeat; and the module's tensors are views of the model's
vector again afterwards, wherever a framework has put them.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, get_worker_info

from peer.errors import InputError
from peer.learning.data.samples import Batch, Samples
from peer.learning.device import memory_errors
from peer.learning.model.layout import ModelPart
from peer.learning.model.model import Model
from peer.learning.named_tensors import NamedTensors
from peer.learning.randomness import derive
from peer.learning.training.optimiser import kind_of, options_of, plain_state
from peer.learning.training.phase import Phase
from peer.plugins import reference, user_code_errors


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
        return [(_one(batch.inputs, number), batch.targets[number]) for number in range(len(indices))]


def _one(inputs: Any, number: int) -> Any:
    return tree_map(lambda of_all: of_all[number], inputs)


class PhaseSamples(NamedTuple):
    """What one phase trains on."""

    samples: Samples
    batches: Generator[Iterator[Batch]]
    """Those of one epoch after the other, as they are drawn."""
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

    def batches(self) -> Iterator[Batch]:
        """The batches of one epoch, each time in another order, on the model's device: inputs, targets, positions."""
        return next(self._batches)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's mean loss, of shape ()."""
        with user_code_errors(self._model.task.name):
            return self._model.task.loss(outputs, targets)

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
        number = len(self._kept)
        self._kept.append(optimiser)
        found = dict[int, dict[str, Tensor]]()
        for key, tensor in self.state.items():
            if key.startswith(f"{self._place(number)}/"):
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
        name, resting = reference(function), self._resting()
        held = [self._model.vector[where].clone() for where in resting]
        try:
            with user_code_errors(name), memory_errors(), closing(self._batches), self._prepared():
                returned = _taken(function(self))
                for number, optimiser in enumerate(self._kept):
                    self._store(number, optimiser)
                if why := self.state.aliasing_problem(self._model.vector):
                    raise ValueError(f"it {why}")
        finally:
            self._check_stop()  # first: what stops a loop is raised inside it
        self.model.to(self.device)
        self._model.rebind()
        if any(not torch.equal(self._model.vector[where], before) for where, before in zip(resting, held, strict=True)):
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
        resting = [layer for layer in self.model.modules() if id(layer) not in learning]
        for layer in resting:
            layer.train = MethodType(_rest, layer)  # type: ignore[method-assign]
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
        if not any(id(parameter) in ours for group in optimiser.param_groups for parameter in group["params"]):
            return None
        self._check_stop()
        self.steps += 1
        if self._phase.gradient_hook is None:
            return None
        closure = named.get("closure") or (given[1] if len(given) > 1 else None)
        if closure is None:
            self._correct()
            return None

        def corrected() -> Any:
            loss = closure()  # which does the backward pass, as Lightning's does
            self._correct()
            return loss

        return (given[0], corrected), {}

    @torch.no_grad()
    def _correct(self) -> None:
        """Let the protocol change the gradient, which backward passes leave in the model's flat one."""
        model, where = self._model, self._model.part(self.part)
        for entry in model.entries(self.part):
            if not entry.trainable:
                entry.view(model.gradient).zero_()
                continue
            parameter, values = self.model.get_parameter(entry.name), entry.view(model.gradient)
            if parameter.grad is None:
                parameter.grad = values.zero_()
            elif parameter.grad.data_ptr() != values.data_ptr():
                parameter.grad = values.copy_(parameter.grad)
        assert self._phase.gradient_hook is not None
        self._phase.gradient_hook(model.vector[where], model.gradient[where])

    def _place(self, number: int) -> str:
        return f"{self.part} optimiser {number}"

    def _store(self, number: int, optimiser: Optimizer) -> None:
        place = self._place(number)
        for key in [key for key in self.state if key.startswith(f"{place}/")]:
            del self.state[key]
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            for field, tensor in plain_state(optimiser.state.get(parameter, {})).items():
                self.state[f"{place}/{index}/{field}"] = tensor.detach().clone()


def _rest(layer: nn.Module, mode: bool = True) -> nn.Module:
    """`train` of a layer that rests: the layers in it may learn."""
    layer.training = False
    for child in layer.children():
        child.train(mode)
    return layer


def _taken(returned: Any) -> Trained:
    """What a loop returned; ValueError for anything but nothing, a number, or numbers by name."""
    named = returned if isinstance(returned, Mapping) else {"loss": returned}
    figures = dict[str, float]()
    for name, value in named.items():
        if value is not None:
            try:
                figures[str(name)] = float(value.detach() if isinstance(value, Tensor) else value)
            except (TypeError, ValueError, RuntimeError):
                raise ValueError(
                    f"it must return nothing, its mean loss, or a dict of numbers, and `{name}` is a "
                    f"{type(value).__name__}"
                ) from None
    return Trained(figures.pop("loss", None), figures)
