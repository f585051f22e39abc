"""A model of the user's own, named `module:Name`."""

from collections.abc import Callable

from torch import nn

from peer.errors import InputError
from peer.plugins import in_words, load_object


def user_model(name: str) -> Callable[[tuple[int, ...], int], tuple[nn.Module, nn.Module]]:
    """What `module:Name` names: takes (shape, classes), gives (extractor, head) or a module that has both."""
    make = load_object(name)
    if not callable(make):
        raise InputError(f"model {name} must be a callable that takes (shape, classes)")

    def made(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        try:
            result = make(shape, classes)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"model {name} cannot be made for {shape} and {classes} classes: {in_words(error)}"
            ) from error
        return _halves(result, name)

    return made


def _halves(result: object, name: str) -> tuple[nn.Module, nn.Module]:
    pair = result if isinstance(result, tuple) else (getattr(result, "extractor", 0), getattr(result, "head", 0))
    if len(pair) != 2 or not all(isinstance(half, nn.Module) for half in pair):
        raise InputError(f"model {name} must give (extractor, head), or a module with .extractor and .head")
    extractor, head = pair
    if isinstance(result, nn.Module):
        inside = {id(parameter) for half in pair for parameter in half.parameters()}
        for parameter, tensor in result.named_parameters():
            if id(tensor) not in inside:
                raise InputError(f"model {name}: {parameter} is in neither extractor nor head; put it into one")
    return extractor, head
