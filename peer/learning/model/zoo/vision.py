"""torchvision's models without pretrained weights; its classifier is the head.

They were made for 224×224 images of three channels. Smaller images are accepted as they are (nothing is
resized, no stride changed): on 32×32 the last feature map is 1×1. The extractor's names are torchvision's
own.
"""

from torch import nn

from peer.learning.vision import torchvision


def mobilenet_v2(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Sandler 2018, FlexiFed's model | dropout .2, FC C. `shape` is (3, height, width)."""
    model: nn.Module = torchvision().models.mobilenet_v2(weights=None, num_classes=classes)
    return _without(model, "classifier")


def resnet18(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """He 2015, CYCle's model | FC C. `shape` is (3, height, width)."""
    model: nn.Module = torchvision().models.resnet18(weights=None, num_classes=classes)
    return _without(model, "fc")


def _without(model: nn.Module, classifier: str) -> tuple[nn.Module, nn.Module]:
    head = model.get_submodule(classifier)
    setattr(model, classifier, nn.Identity())
    return model, head
