"""The models a federation can name, each made for an input shape and a number of classes."""

from collections.abc import Callable

import torch
from torch import nn

from peer.errors import InputError, nearest
from peer.learning.model.dry_pass import Example
from peer.learning.model.model import Model, Split
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


def maker(name: str) -> Maker:
    """What makes the model of that name: one of MODELS, or the user's own `module:Name`; else InputError."""
    if ":" in name:
        return user_model(name)
    if name not in MODELS:
        raise InputError(f"there is no model {name}; {nearest(name, [*MODELS, 'module:Name'])}")
    return MODELS[name]


def build(name: str, example: Example, seed: int, stream: str = "shared", device: torch.device | str = "cpu") -> Model:
    """A model with fresh weights, drawn from the stream (seed, `stream`).

    The same `stream` for every peer gives all the same weights (`init: shared`), the peer's id gives each its
    own (`init: independent`). The weights do not depend on the device. InputError if the model is unknown or
    does not fit the example.
    """
    with global_stream(derive(seed, "init", stream)):
        extractor, head = maker(name)(example.shape, example.classes)
        return Model(Split(extractor, head), name=name, example=example, device=device)
