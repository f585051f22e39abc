"""The models a federation can name, each made for an input shape and a number of classes."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from peer.errors import InputError, nearest
from peer.learning.model.digests import named_sha256
from peer.learning.model.dry_pass import Example
from peer.learning.model.model import Gradient, Model
from peer.learning.model.rounded import answer_in_float32, convert
from peer.learning.model.settings import ModelSettings
from peer.learning.model.split import Patterned, Split, check_patterns, matches
from peer.learning.model.weights import load_weights
from peer.learning.model.zoo.convolutional import cnn, cnn5, cnn_small, cnn_xu
from peer.learning.model.zoo.perceptron import mlp, mlp3, mlp_square
from peer.learning.model.zoo.user import user_model
from peer.learning.model.zoo.vision import mobilenet_v2, resnet18
from peer.learning.randomness import derive, global_stream

Maker = Callable[[tuple[int, ...], int], tuple[nn.Module, nn.Module]]

MODELS: dict[str, Maker] = {
    "mlp": mlp,
    "cnn": cnn,
    "cnn-small": cnn_small,
    "mlp3": mlp3,
    "mlp-square": mlp_square,
    "cnn5": cnn5,
    "cnn-xu": cnn_xu,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
}


def split(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> Split | Patterned:
    """One of MODELS, or the user's own `module:Name`, as fresh modules; InputError if there is none of that name."""
    name = settings.name
    if ":" in name:
        return user_model(settings)(shape, classes)
    if name not in MODELS:
        raise InputError(f"there is no model {name}; {nearest(name, [*MODELS, 'module:Name'])}")
    return Split(*MODELS[name](shape, classes))


def build(
    model: str | ModelSettings,
    example: Example,
    seed: int,
    stream: str = "shared",
    device: torch.device | str = "cpu",
    gradient: Gradient = torch.zeros_like,
) -> Model:
    """A model with fresh weights, drawn from the stream (seed, `stream`), or with those of a file.

    The same `stream` for every peer gives all the same weights (`init: shared`), the peer's id gives each its
    own (`init: independent`); what is frozen is the same at all of them. The weights do not depend on the device.
    InputError if the model is unknown or does not fit the example, or the file is not of this model.
    """
    settings = ModelSettings(name=model) if isinstance(model, str) else model
    made = _drawn(settings, example, derive(seed, "init", stream), device, gradient)
    if made.frozen and not made.trainable("model"):
        raise InputError(
            f"model {made.name} has nothing left to learn, as all of its parameters are frozen; freeze fewer"
        )
    if made.frozen and stream != "shared":
        made.take(_drawn(settings, example, derive(seed, "init", "shared"), device, gradient).frozen)
    if settings.weights:
        made.loaded = load_weights(made, settings.weights, partial=settings.partial)
    made.facts = tuple(_facts(made, shared=stream == "shared"))
    return made


def _drawn(
    settings: ModelSettings, example: Example, seed: int, device: torch.device | str, gradient: Gradient
) -> Model:
    with global_stream(seed):
        parts = split(settings, example.shape, example.classes)
        _freeze(parts.module, settings)
        if settings.dtype:
            convert(parts, getattr(torch, settings.dtype))
        answer_in_float32(parts)
        made = Model(parts, name=settings.name, example=example, device=device, gradient=gradient)
    made.settings = settings
    return made


def _freeze(module: nn.Module, settings: ModelSettings) -> None:
    check_patterns(module, settings.freeze, "freeze", settings.name)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if matches(name, settings.freeze):
            parameter.requires_grad_(False)


def _facts(model: Model, *, shared: bool) -> Iterator[str]:
    """What of its weights all peers must have alike, in words."""
    if model.frozen:
        yield f"frozen weights sha256:{model.frozen_sha256}"
    if model.settings.weights and shared:
        yield f"initial weights sha256:{named_sha256(model.state())}"
