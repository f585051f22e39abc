"""Small convolutional models for images (channels, height, width); their layers are sized to the image."""

from torch import nn

from peer.errors import InputError


def cnn(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """The RI paper's arch 1: conv 32, pool, conv 64, pool, FC 512 | FC C; 3×3, padding 1 (our choice)."""
    channels, height, width = _image(shape, "cnn", 4)
    extractor = nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return extractor, nn.Linear(512, classes)


def cnn_small(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """The RI paper's arch 2: conv 16, pool, FC 128 | FC C; 3×3, padding 1 (our choice)."""
    channels, height, width = _image(shape, "cnn-small", 2)
    extractor = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 2) * (width // 2), 128),
        nn.ReLU(),
    )
    return extractor, nn.Linear(128, classes)


def cnn5(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """FedISP's: 2 convolutions, 3 FC. CIFAR-10: 236,418 in all.

    The paper gives the kinds of layers and "0.24M"; our choice: 5×5 unpadded, 16 and 32 channels, pools
    between, FC 240, FC 120 | FC C.
    """
    return _five_layers(shape, classes, "cnn5", (240, 120))


def cnn_xu(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """CGSV's (Xu et al. 2021): conv 16, pool, conv 32, pool, FC 120, FC 84 | FC C. CIFAR-10: 121,182 in all.

    5×5, unpadded; ReLU after every layer but the last.
    """
    return _five_layers(shape, classes, "cnn-xu", (120, 84))


def _five_layers(
    shape: tuple[int, ...], classes: int, name: str, widths: tuple[int, int]
) -> tuple[nn.Module, nn.Module]:
    """conv 16, pool, conv 32, pool, FC, FC of these widths | FC C; 5×5, unpadded."""
    channels, height, width = _image(shape, name, 16)
    rest = ((height - 4) // 2 - 4) // 2, ((width - 4) // 2 - 4) // 2
    extractor = nn.Sequential(
        nn.Conv2d(channels, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * rest[0] * rest[1], widths[0]),
        nn.ReLU(),
        nn.Linear(widths[0], widths[1]),
        nn.ReLU(),
    )
    return extractor, nn.Linear(widths[1], classes)


def _image(shape: tuple[int, ...], name: str, side: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < side:
        raise InputError(
            f"model {name} takes images (channels, height, width) of at least {side}×{side} pixels, "
            f"not inputs of shape {shape}; choose a model such as mlp"
        )
    return shape[0], shape[1], shape[2]
