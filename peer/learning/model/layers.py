"""Which parameters each layer goes with: what is frozen, and which layers rest while a part learns."""

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from torch import nn

from peer.learning.model.split import Patterned, Split

Part = Literal["extractor", "head", "model"]
PARTS: tuple[Part, ...] = get_args(Part)
Names = tuple[str, ...]


def governing(root: nn.Module) -> dict[str, Names]:
    """By each layer's name the names of the parameters that it goes with.

    They are its own; without any, all those of the layers in it; without any, those of the nearest layer around it
    that has some.
    """
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    found = dict[str, Names]()
    for path, layer in root.named_modules():
        own = layer.parameters(recurse=False)
        found[path] = (
            tuple(names[id(parameter)] for parameter in own)
            or tuple(names[id(parameter)] for parameter in layer.parameters())
            or found.get(path.rpartition(".")[0], ())
        )
    return found


def frozen_layers(root: nn.Module) -> frozenset[str]:
    """The layers that go with frozen parameters alone; to be asked before a part's parameters are held still."""
    trainable = {name for name, parameter in root.named_parameters() if parameter.requires_grad}
    return frozenset(layer for layer, names in governing(root).items() if names and not trainable & {*names})


def resting(split: Split | Patterned) -> Mapping[Part, tuple[nn.Module, ...]]:
    """By part, the layers that stay in evaluation mode while it learns.

    Those are frozen layers that have buffers, such as a BatchNorm, whose statistics so stay as well; and, of one module
    that is divided by names, the layers that go with parameters of the other part alone.
    """
    return {part: tuple(_resting(split, part)) for part in PARTS}


def _resting(split: Split | Patterned, part: Part) -> Iterator[nn.Module]:
    root = split.module
    goes_with, frozen = governing(root), frozen_layers(root)
    for path, layer in root.named_modules():
        halves = {split.part_of(name) for name in goes_with[path]}
        others = isinstance(split, Patterned) and part != "model" and bool(halves) and part not in halves
        if others or (path in frozen and _keeps_buffers(layer)):
            yield layer


def _keeps_buffers(layer: nn.Module) -> bool:
    kept = layer._buffers.keys() - layer._non_persistent_buffers_set
    return any(layer._buffers[key] is not None for key in kept)
