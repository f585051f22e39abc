"""Writes a small MONAI bundle, in the way of those in the Model Zoo, and volumes to train it on:

python examples/bundle.py data/cubes
"""

import json
import sys
from pathlib import Path

import numpy as np

BOTH = ["image", "label"]
FILES = (
    "$[{{'image': i, 'label': i.replace('image', 'label')}} for i in sorted(glob.glob(@dataset_dir + '/{}*image*'))]"
)
TRAIN = {
    "imports": ["$import glob"],
    "bundle_root": ".",
    "dataset_dir": "data",
    "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
    "network_def": {
        "_target_": "UNet",
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
        "channels": [8, 16],
        "strides": [2],
    },
    "network": "$@network_def.to(@device)",
    "loss": {"_target_": "DiceCELoss", "to_onehot_y": True, "softmax": True},
    "optimizer": {"_target_": "torch.optim.Adam", "params": "$@network.parameters()", "lr": 0.02},
    "lr_scheduler": {
        "_target_": "torch.optim.lr_scheduler.StepLR",
        "optimizer": "@optimizer",
        "step_size": 10,
        "gamma": 0.5,
    },
    "train": {
        "deterministic_transforms": [
            {"_target_": "LoadImaged", "keys": BOTH},
            {"_target_": "EnsureChannelFirstd", "keys": BOTH},
            {"_target_": "ScaleIntensityd", "keys": "image"},
            {"_target_": "EnsureTyped", "keys": BOTH},
        ],
        "random_transforms": [
            {
                "_target_": "RandCropByPosNegLabeld",
                "keys": BOTH,
                "label_key": "label",
                "spatial_size": [16, 16, 16],
                "num_samples": 2,
            }
        ],
        "preprocessing": {
            "_target_": "Compose",
            "transforms": "$@train#deterministic_transforms + @train#random_transforms",
        },
        "dataset": {"_target_": "CacheDataset", "data": FILES.format("train"), "transform": "@train#preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@train#dataset", "batch_size": 2, "shuffle": True},
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "Activationsd", "keys": "pred", "softmax": True},
                {"_target_": "AsDiscreted", "keys": ["pred", "label"], "argmax": [True, False], "to_onehot": 2},
            ],
        },
        "handlers": [{"_target_": "LrScheduleHandler", "lr_scheduler": "@lr_scheduler"}],
        "trainer": {
            "_target_": "SupervisedTrainer",
            "max_epochs": 8,
            "device": "@device",
            "train_data_loader": "@train#dataloader",
            "network": "@network",
            "loss_function": "@loss",
            "optimizer": "@optimizer",
            "inferer": "@train#inferer",
            "train_handlers": "@train#handlers",
        },
    },
    "validate": {
        "preprocessing": {"_target_": "Compose", "transforms": "%train#deterministic_transforms"},
        "dataset": {"_target_": "CacheDataset", "data": FILES.format("test"), "transform": "@validate#preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@validate#dataset", "batch_size": 1},
        "inferer": {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 16], "sw_batch_size": 4},
        "postprocessing": "%train#postprocessing",
        "key_metric": {
            "val_mean_dice": {
                "_target_": "MeanDice",
                "include_background": False,
                "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
            }
        },
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@validate#dataloader",
            "network": "@network",
            "inferer": "@validate#inferer",
            "postprocessing": "@validate#postprocessing",
            "key_val_metric": "@validate#key_metric",
        },
    },
    "initialize": ["$monai.utils.set_determinism(seed=123)"],
    "run": ["$@train#trainer.run()"],
}
METADATA = {
    "version": "0.1.0",
    "task": "Bright cubes in noise",
    "network_data_format": {
        "inputs": {"image": {"type": "image", "num_channels": 1}},
        "outputs": {"pred": {"type": "image", "num_channels": 2}},
    },
}


def write(folder):
    """`configs/`, and in `data/` nine volumes to train on and three to test on, of different sizes."""
    for place in ("configs", "data"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / "configs" / "train.json").write_text(json.dumps(TRAIN, indent=4))
    (folder / "configs" / "metadata.json").write_text(json.dumps(METADATA, indent=4))
    for number in range(12):
        name, size = ("train", (24, 24, 24)) if number < 9 else ("test", (24, 20 + 4 * (number - 9), 28))
        write_scan(folder / "data", f"{name}{number}", number, size)


def write_scan(folder, name, seed, size):
    """A bright cube in noise, and where it is."""
    import nibabel

    rng, label = np.random.default_rng(seed), np.zeros(size, np.uint8)
    x, y, z = (rng.integers(4, side - 10) for side in size)
    label[x : x + 6, y : y + 6, z : z + 6] = 1
    image = (label + 0.3 * rng.normal(size=size)).astype(np.float32)
    for kind, array in (("image", image), ("label", label)):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder / f"{name}_{kind}.nii.gz")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
