"""Segmentation of volumes with MONAI: trained on random crops, tested whole, by windows that slide over them.

`pip install -c constraints.txt 'dfl[frameworks]'` installs MONAI.
"""

from typing import Any

import numpy as np
from monai import transforms
from monai.data import CacheDataset, list_data_collate
from monai.inferers import sliding_window_inference
from monai.networks.nets import UNet
from torch import Tensor, nn

from peer.learning.tasks import Segmentation

BOTH = ("image", "label")
WINDOW = (16, 16, 16)


class Windows(Segmentation):
    """Volumes of any size, one at a time."""

    name: str
    evaluation_batch = 1

    def infer(self, forward: Any, inputs: Any) -> Tensor:
        outputs: Tensor = sliding_window_inference(inputs, WINDOW, 4, forward)
        return outputs


def scan(seed: int, size: tuple[int, int, int]) -> dict[str, Any]:
    """A bright cube in noise; yours come from files, by `LoadImaged`."""
    rng, label = np.random.default_rng(seed), np.zeros(size, np.int64)
    x, y, z = (rng.integers(4, side - 10) for side in size)
    label[x : x + 6, y : y + 6, z : z + 6] = 1
    return {"image": (label + 0.3 * rng.normal(size=size)).astype(np.float32), "label": label}


def scans() -> tuple[Any, Any]:
    """Two data sets, for training and for tests; their samples are dicts."""
    first = [transforms.EnsureChannelFirstd(BOTH, channel_dim="no_channel"), transforms.ScaleIntensityd("image")]
    crops = transforms.RandCropByPosNegLabeld(BOTH, "label", WINDOW, num_samples=2)
    train = [scan(seed, (24, 24, 24)) for seed in range(9)]
    test = [scan(100 + seed, (24, 20 + 4 * seed, 28)) for seed in range(3)]
    return (
        CacheDataset(train, transforms.Compose([*first, crops]), progress=False),
        CacheDataset(test, transforms.Compose(first), progress=False),
    )


def collate(samples: list[Any]) -> tuple[Tensor, Tensor]:
    """(n, 1, D, H, W) and (n, 1, D, H, W), of two crops a sample in training."""
    batch = list_data_collate(samples)
    return batch["image"].as_tensor(), batch["label"].as_tensor()


def unet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Any fully convolutional network will do."""
    made: nn.Module = UNet(3, shape[0], classes, channels=(8, 16), strides=(2,))
    return made
