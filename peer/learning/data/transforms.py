"""What is done to a sample before the model sees it: torchvision's transforms by name, or the user's own."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, JsonValue
from torch import Tensor

from peer.errors import InputError, suggest
from peer.learning.vision import torchvision
from peer.plugins import call_problem, load_object, user_input_errors
from peer.settings import Wanted

Step = Callable[..., Any]
Named = str | Annotated[dict[str, dict[str, JsonValue]], Field(min_length=1, max_length=1)]
"""`RandomHorizontalFlip`, `{RandomCrop: {size: 28, padding: 2}}`, or with `module:name` in place of the name."""

Steps = Annotated[
    tuple[Named, ...], Wanted("a list of transforms, such as [RandomHorizontalFlip, {RandomCrop: {size: 28}}]")
]


class Transform:
    """Transforms one after the other, of an input, and of a target that is as high and wide: both alike."""

    def __init__(self, steps: Sequence[Named]) -> None:
        """Raise InputError for an unknown name, and for arguments that a transform does not take."""
        self.named, self.steps = steps, [_step(one) for one in steps]

    def __reduce__(self) -> tuple[type["Transform"], tuple[Sequence[Named]]]:
        """A worker makes them anew, by their names: so they may be any functions."""
        return Transform, (self.named,)

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        if not _is_mask_of(y, x):
            for step in self.steps:
                x = step(x)
            return x, y
        kinds = torchvision().tv_tensors
        image, mask = kinds.Image(x), kinds.Mask(y)
        for step in self.steps:
            image, mask = step(image, mask)
        return image.as_subclass(Tensor), mask.as_subclass(Tensor)


def _is_mask_of(y: Any, x: Any) -> bool:
    """TypeError for a target that may be a mask, and that would be left as it is beside a changed image."""
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim > 2 and y.ndim > 1 and x.shape[-2:] == y.shape[-2:]:
        return True
    if getattr(y, "ndim", 0) > 1 or hasattr(y, "getpixel"):
        raise TypeError(
            "the target is neither a number nor a mask as high and wide as its image, both tensors; make it one, or "
            "transform both in the data set"
        )
    return False


def _step(named: Named) -> Step:
    (name, arguments), *_ = [(named, None)] if isinstance(named, str) else named.items()
    found = load_object(name) if ":" in name else _from_torchvision(name)
    if arguments is not None or inspect.isclass(found):
        given = {key: _value(key, value) for key, value in (arguments or {}).items()}
        if why := call_problem(found, given, f"write `{{{{{name}: {{{{{{}}: ...}}}}}}}}`"):
            raise InputError(f"the transform `{name}` {why}")
        with user_input_errors(f"the transform `{name}` does not take what it is given"):
            found = found(**given)
    if not callable(found):
        raise InputError(f"the transform `{name}` cannot be called with a sample; make it a function, or a class")
    return found  # type: ignore[no-any-return]


def _from_torchvision(name: str) -> Any:
    torchvision()
    v2 = importlib.import_module("torchvision.transforms.v2")
    known = [key for key, value in vars(v2).items() if inspect.isclass(value) and issubclass(value, torch.nn.Module)]
    if name not in known:
        raise InputError(f"unknown transform `{name}`; {suggest(name, [*known, 'module:name'])}")
    return getattr(v2, name)


def _value(key: str, value: JsonValue) -> Any:
    """What YAML has no word for: dtypes, and ways to interpolate."""
    if key == "dtype" and isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype):
        return getattr(torch, value)
    if key == "interpolation" and isinstance(value, str):
        return torchvision().transforms.InterpolationMode(value)
    return value


def transforms_by_use(training: Sequence[Named], tested: Sequence[Named]) -> Mapping[bool, Transform | None]:
    """The transforms by whether samples are trained on; InputError names the key in the settings."""
    found: dict[bool, Transform | None] = {}
    for key, use, steps in (("transforms", True, training), ("test_transforms", False, tested)):
        try:
            found[use] = Transform(steps) if steps else None
        except InputError as error:
            raise InputError(f"`{key}`: {error}") from error.__cause__
    return found
