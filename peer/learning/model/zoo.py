"""The models a federation can name, each made for an input shape and a number of classes.

A maker gives (extractor, head) as fresh modules: fully connected ones, which flatten inputs of any shape first;
small convolutional ones for images (channels, height, width), whose layers are sized to the image; torchvision's,
without pretrained weights; or the user's own, `module:Name`. `build` draws the weights.

torchvision's models were made for 224×224 images of three channels. Smaller images are accepted as they are
(nothing is resized, no stride changed): on 32×32 the last feature map is 1×1. The classifier is the head, and the
extractor's names are torchvision's own.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from peer.errors import InputError, suggest
from peer.learning.model.layout import Patterned, Split, check_patterns, matches
from peer.learning.model.low_precision import set_precision
from peer.learning.model.model import Gradient, Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.weights import load_weights
from peer.learning.named_tensors import named_sha256
from peer.learning.randomness import derive, global_stream
from peer.learning.vision import torchvision
from peer.plugins import check_options, load_object, user_input_errors


def mlp(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """FIRMA's: d-256-256-128 with layer norm after the first two | 128-C. 64 and 10: 116,352 and 1,290."""
    extractor = nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 256),
        nn.LayerNorm(256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.LayerNorm(256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
    )
    return extractor, nn.Linear(128, classes)


def mlp3(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """FedISP's: d-512-256-128 with ReLU | 128-C. 784 and 10: 567,434 in all."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise((math.prod(shape), 512, 256, 128)):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers), nn.Linear(128, classes)


class Square(nn.Module):
    """x², which can be computed on encrypted numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def mlp_square(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """d-16, squared | 16-C, for `predictions: encrypted`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), Square()), nn.Linear(16, classes)


def cnn(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """The RI paper's arch 1: conv 32, pool, conv 64, pool, FC 512 | FC C; 3×3, padding 1 (our choice)."""
    channels, height, width = _image(shape, "cnn", 4)
    extractor = nn.Sequential(
        *_convolved(channels, 32, 3, padding=1),
        *_convolved(32, 64, 3, padding=1),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return extractor, nn.Linear(512, classes)


def cnn_small(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """The RI paper's arch 2: conv 16, pool, FC 128 | FC C; 3×3, padding 1 (our choice)."""
    channels, height, width = _image(shape, "cnn-small", 2)
    extractor = nn.Sequential(
        *_convolved(channels, 16, 3, padding=1),
        nn.Flatten(),
        nn.Linear(16 * (height // 2) * (width // 2), 128),
        nn.ReLU(),
    )
    return extractor, nn.Linear(128, classes)


def cnn5(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """FedISP's: conv 16, pool, conv 32, pool, FC 240, FC 120 | FC C (sizes our choice); 5×5, unpadded. CIFAR-10:
    236,418 in all."""
    return _five_layers(shape, classes, "cnn5", (240, 120))


def cnn_xu(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """CGSV's (Xu et al. 2021): conv 16, pool, conv 32, pool, FC 120, FC 84 | FC C; 5×5, unpadded. CIFAR-10: 121,182 in
    all."""
    return _five_layers(shape, classes, "cnn-xu", (120, 84))


def _five_layers(
    shape: tuple[int, ...], classes: int, name: str, widths: tuple[int, int]
) -> tuple[nn.Module, nn.Module]:
    """conv 16, pool, conv 32, pool, FC, FC of these widths | FC C; 5×5, unpadded."""
    channels, height, width = _image(shape, name, 16)
    rest = ((height - 4) // 2 - 4) // 2, ((width - 4) // 2 - 4) // 2
    extractor = nn.Sequential(
        *_convolved(channels, 16, 5),
        *_convolved(16, 32, 5),
        nn.Flatten(),
        nn.Linear(32 * rest[0] * rest[1], widths[0]),
        nn.ReLU(),
        nn.Linear(widths[0], widths[1]),
        nn.ReLU(),
    )
    return extractor, nn.Linear(widths[1], classes)


def _convolved(channels: int, filters: int, side: int, padding: int = 0) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, side, padding=padding), nn.ReLU(), nn.MaxPool2d(2)


def _image(shape: tuple[int, ...], name: str, side: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < side:
        raise InputError(
            f"model {name} takes images (channels, height, width) of at least {side}×{side} pixels, "
            f"not inputs of shape {shape}; choose a model such as mlp"
        )
    return shape[0], shape[1], shape[2]


def mobilenet_v2(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Sandler 2018, FlexiFed's | dropout .2, FC C. Colour images."""
    return _torchvision_model("mobilenet_v2", classes, "classifier")


def resnet18(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """He 2015, CYCle's | FC C. Colour images."""
    return _torchvision_model("resnet18", classes, "fc")


def _torchvision_model(name: str, classes: int, classifier: str) -> tuple[nn.Module, nn.Module]:
    model: nn.Module = getattr(torchvision().models, name)(weights=None, num_classes=classes)
    head = model.get_submodule(classifier)
    setattr(model, classifier, nn.Identity())
    return model, head


def user_model(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> Split | Patterned:
    """What `module:Name` makes: it takes (shape, classes, **options), gives (extractor, head) or one module.

    One module has both by these names, or `head` says by patterns what is the head.
    """
    name, make = settings.name, load_object(settings.name)
    if not callable(make):
        raise InputError(f"model {name} must be a callable that takes (shape, classes)")
    if settings.options:
        check_options(make, f"model {name}", settings.options, (), 0)
    with user_input_errors(f"model {name} cannot be made for {shape} and {classes} classes"):
        result = make(shape, classes, **settings.options)
    return Split(*_halves(result, name)) if settings.head is None else _patterned(result, name, settings.head)


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


def make_split(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> Split | Patterned:
    """One of MODELS, or the user's own `module:Name`, as fresh modules; InputError if there is none of that name."""
    name = settings.name
    if ":" in name:
        return user_model(settings, shape, classes)
    if name not in MODELS:
        raise InputError(f"there is no model {name}; {suggest(name, [*MODELS, 'module:Name'])}")
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
        made.copy_from(_drawn(settings, example, derive(seed, "init", "shared"), device, gradient).frozen)
    if settings.weights:
        rebuilt = named_sha256(made.rebuilt)
        made.loaded = load_weights(made, settings.weights, partial=settings.partial)
        if named_sha256(made.rebuilt) != rebuilt:
            made.module.rebuilt_names = ()  # type: ignore[assignment]
    if made.frozen:
        made.facts = (f"frozen weights sha256:{made.frozen_sha256}",)
    if settings.weights and stream == "shared":
        made.facts += (f"initial weights sha256:{named_sha256(made.state())}",)
    return made


def _drawn(
    settings: ModelSettings, example: Example, seed: int, device: torch.device | str, gradient: Gradient
) -> Model:
    with global_stream(seed):
        parts = make_split(settings, example.shape, example.classes)
        _freeze(parts.module, settings)
        set_precision(parts, getattr(torch, settings.dtype) if settings.dtype else None)
        return Model(parts, settings=settings, example=example, device=device, gradient=gradient)


def _freeze(module: nn.Module, settings: ModelSettings) -> None:
    check_patterns(module, settings.freeze, "freeze", settings.name)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if matches(name, settings.freeze):
            parameter.requires_grad_(False)
