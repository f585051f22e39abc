"""A model of the user's own, named `module:Name`."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from peer.errors import InputError
from peer.learning.model.settings import ModelSettings
from peer.learning.model.split import Patterned, Split, check_patterns
from peer.plugins import in_words, load_object


def user_model(settings: ModelSettings) -> Callable[[tuple[int, ...], int], Split | Patterned]:
    """What `module:Name` names: takes (shape, classes, **options), gives (extractor, head) or one module.

    One module has both by these names, or `head` says by patterns what is the head.
    """
    name = settings.name
    make = load_object(name)
    if not callable(make):
        raise InputError(f"model {name} must be a callable that takes (shape, classes)")

    def made(shape: tuple[int, ...], classes: int) -> Split | Patterned:
        _check_options(make, settings)
        try:
            result = make(shape, classes, **settings.options)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(
                f"model {name} cannot be made for {shape} and {classes} classes: {in_words(error)}"
            ) from error
        return Split(*_halves(result, name)) if settings.head is None else _patterned(result, name, settings.head)

    return made


def _check_options(make: Callable[..., Any], settings: ModelSettings) -> None:
    if not settings.options:
        return
    try:
        inspect.signature(make).bind((), 0, **settings.options)
    except (TypeError, ValueError) as error:
        raise InputError(f"model {settings.name} cannot be called with the options given: {error}") from error


def _patterned(result: object, name: str, head: tuple[str, ...]) -> Patterned:
    if not isinstance(result, nn.Module):
        raise InputError(f"model {name} gives no single module that `head` could divide by names; leave out `head`")
    check_patterns(result, head, "head", name)
    return Patterned(result, head)


def _halves(result: object, name: str) -> tuple[nn.Module, nn.Module]:
    pair = result if isinstance(result, tuple) else (getattr(result, "extractor", 0), getattr(result, "head", 0))
    if len(pair) != 2 or not all(isinstance(half, nn.Module) for half in pair):
        raise InputError(
            f"model {name} must give (extractor, head), a module with .extractor and .head, or one module of which "
            '`head` in `model` says by patterns what is the head, such as `head: ["classifier.*"]`'
        )
    extractor, head = pair
    if isinstance(result, nn.Module):
        inside = {id(parameter) for half in pair for parameter in half.parameters()}
        for parameter, tensor in result.named_parameters():
            if id(tensor) not in inside:
                raise InputError(f"model {name}: {parameter} is in neither extractor nor head; put it into one")
    return extractor, head
