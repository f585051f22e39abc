"""What is extractor and what is head: two modules, or one whose tensors are divided by their names."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor, nn

from peer.errors import InputError

Half = Literal["extractor", "head"]
HALVES: tuple[Half, ...] = ("extractor", "head")


class Split(nn.Module):
    """head(extractor(x)); gives every tensor its name, `extractor.…` or `head.…`."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """(n, *shape) → the model's outputs: (n, classes) logits where the task has classes."""
        outputs: Tensor = self.head(self.extractor(*inputs, **named))
        return outputs

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def entrances(self) -> tuple[nn.Module, ...]:
        """The modules that are called on their own, each with what the one before it gave."""
        return self.extractor, self.head

    def part_of(self, name: str) -> Half:
        """The half to which the tensor of that name belongs."""
        return "head" if name.startswith("head.") else "extractor"


@dataclass(frozen=True, eq=False)
class Patterned:
    """One module: the tensors whose names match a pattern are the head, all others the extractor.

    They keep the names that they have in the module.
    """

    module: nn.Module
    head: tuple[str, ...]

    @property
    def entrances(self) -> tuple[nn.Module, ...]:
        return (self.module,)

    def part_of(self, name: str) -> Half:
        return "head" if matches(name, self.head) or self._beside_a_head(name) else "extractor"

    def _beside_a_head(self, name: str) -> bool:
        """Whether it is a buffer of a layer all of whose parameters are the head's, such as a BatchNorm's mean."""
        owner, _, key = name.rpartition(".")
        layer = self.module.get_submodule(owner)
        if key not in layer._buffers:
            return False
        beside = [f"{owner}.{other}" if owner else other for other in layer._parameters]
        return bool(beside) and all(matches(other, self.head) for other in beside)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name is one of those patterns', in which `*` stands for anything, dots as well."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(module: nn.Module, patterns: tuple[str, ...], key: str, model: str) -> None:
    """InputError for a pattern that no tensor's name matches."""
    names = [name for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers())]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(names[:3] + ["..."] * (len(names) > 3)) or "none"
            raise InputError(f"model {model} has no tensor whose name matches `{pattern}` of `{key}`; it has {some}")
