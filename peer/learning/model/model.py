"""A split model on one flat vector: what leaves a peer is a slice of it."""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Literal, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.model.dry_pass import Example, dry_pass
from peer.learning.model.functional import logits_with
from peer.learning.model.inputs import spread
from peer.learning.model.layout import HALVES, Entry, bind, counters, lay_out, rebind
from peer.learning.randomness import global_stream

Part = Literal["extractor", "head", "model"]
PARTS: tuple[Part, ...] = get_args(Part)


class Split(nn.Module):
    """head(extractor(x)); gives every tensor its name, `extractor.…` or `head.…`."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, x: Any) -> Tensor:
        """(n, *shape) → the model's outputs: (n, classes) logits where the task has classes."""
        outputs: Tensor = self.head(spread(self.extractor, x))
        return outputs


class Model:
    """Extractor and head, whose parameters and float buffers are views into `vector`.

    `vector` and `gradient` are float32, of one layout: extractor parameters, extractor float buffers, head
    parameters, head float buffers (`layout` says what lies where). Autograd accumulates into `gradient` in
    place. Write into `vector`; never rebind it. Integer and boolean buffers (BatchNorm's counters) lie apart
    in `counters`, live and by name. Non-persistent buffers are the module's own affair: moved to the device,
    in neither.
    """

    def __init__(
        self,
        split: Split,
        *,
        name: str,
        example: Example,
        device: torch.device | str = "cpu",
    ) -> None:
        """Check by a dry pass that the model fits the example's task (else InputError); lay it out."""
        self.name, self.shape, self.classes = name, example.shape, example.classes
        self.task = example.task
        self.device = torch.device(device)
        self.module = split
        #: Whether a training pass draws from torch's global generator (dropout), which then has to be seeded.
        self.draws = dry_pass(self.module, name, example)
        self.layout: tuple[Entry, ...] = lay_out(self.module, name)
        self.module.to(self.device)
        self.counters: dict[str, Tensor] = counters(self.module)
        self.vector = torch.empty(sum(e.size for e in self.layout), dtype=torch.float32, device=self.device)
        self.gradient = torch.zeros_like(self.vector)
        bind(self.module, self.layout, self.vector, self.gradient)

    @property
    def extractor(self) -> Tensor:
        """The extractor's slice of `vector`, as a view."""
        return self.vector[self.part("extractor")]

    @property
    def head(self) -> Tensor:
        """The head's slice of `vector`, as a view; empty if the head has nothing to learn."""
        return self.vector[self.part("head")]

    def part(self, name: Part) -> slice:
        """The slice of `vector` that holds a part: its parameters and float buffers."""
        border = sum(entry.size for entry in self.layout if entry.part == "extractor")
        ends = {"extractor": (0, border), "head": (border, len(self.vector)), "model": (0, len(self.vector))}
        return slice(*ends[name])

    @property
    def sizes(self) -> dict[str, int]:
        """Values of `extractor`, `head` and `model`."""
        return {part: self.part(part).stop - self.part(part).start for part in PARTS}

    def trainable(self, name: Part) -> tuple[slice, ...]:
        """The slices of `vector` that an optimiser may step, as few as possible; maybe none."""
        slices: list[slice] = []
        for entry in self.entries(name):
            if not entry.trainable or entry.size == 0:
                continue
            joins = bool(slices) and slices[-1].stop == entry.offset
            start = slices.pop().start if joins else entry.offset
            slices.append(slice(start, entry.offset + entry.size))
        return tuple(slices)

    def entries(self, name: Part = "model") -> tuple[Entry, ...]:
        """The part's tensors in the vector's order: the manifest of what travels when the part does."""
        return tuple(entry for entry in self.layout if name in ("model", entry.part))

    def modules(self, name: Part) -> tuple[nn.Module, ...]:
        """The part's modules: one, or both for "model"."""
        return tuple(self.module.get_submodule(half) for half in HALVES if name in ("model", half))

    def train(self, mode: bool = True, part: Part = "model") -> None:
        """Put a part into training mode, or into evaluation mode when `mode` is false."""
        for module in self.modules(part):
            module.train(mode)

    def learn(self, part: Part) -> None:
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
        outputs: Tensor = self.module(x)
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
        """
        if training and self.draws and seed is None:
            raise ValueError(f"model {self.name} draws random numbers in training (dropout); give `logits` a seed")
        with global_stream(seed, self.device) if training and self.draws else nullcontext():
            return logits_with(self.module, self.layout, vector, x, training=training)

    def predict(self, x: Tensor | NDArray[Any]) -> Tensor:
        """(n, *shape), or one sample (*shape) → the task's answers, on the CPU: class numbers, int64 (n,) or ()."""
        batch = torch.as_tensor(x, dtype=getattr(torch, self.task.inputs), device=self.device)
        single = tuple(batch.shape) == self.shape
        if not single and tuple(batch.shape[1:]) != self.shape:
            wanted = ("n", *self.shape)
            raise InputError(f"model {self.name} takes ({', '.join(map(str, wanted))}), not {tuple(batch.shape)}")
        self.train(False)
        with torch.inference_mode():
            answers = self.task.answers(self.forward(batch[None] if single else batch)).cpu()
        return answers[0] if single else answers

    def rebind(self) -> None:
        """Take back buffers that a module of the user's assigned anew instead of updating them in place."""
        rebind(self.module, self.layout, self.vector)
        self.counters = counters(self.module)

    def state(self) -> dict[str, Tensor]:
        """Every parameter and persistent buffer by name, in its own shape: live tensors, not copies."""
        return {entry.name: entry.view(self.vector) for entry in self.layout} | self.counters

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy in what `state` gave; names and shapes must be the model's own (InputError)."""
        own = self.state()
        differing = sorted(own.keys() ^ state.keys()) or [k for k in own if own[k].shape != state[k].shape]
        if differing:
            raise InputError(f"these are not the tensors of model {self.name}: {differing[0]} differs")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def sha256(self) -> str:
        """SHA-256 in hex over all parameters and persistent buffers, whatever their layout in memory.

        It takes each tensor's bytes, contiguous and little-endian, in the order of the sorted names, nothing
        between, so that anyone gets it from the arrays of a model.safetensors: `for name in sorted(arrays):
        digest.update(arrays[name].tobytes())`.
        """
        digest = hashlib.sha256()
        for _, tensor in sorted(self.state().items()):
            array = tensor.cpu().numpy()
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()
