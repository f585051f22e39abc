"""A peer that trains alone ends with the bits of the same training written as a plain PyTorch loop.

The loops know of this package only how it derives seeds: for the initial weights, and for the order of the batches.
"""

import asyncio
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from real_peers import Nursery, SmallFederation
from ruamel.yaml import YAML
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from peer.learning.randomness import derive
from peer.runtime.in_process import run_in_process
from peer.spec.document import dump_yaml
from peer.spec.loading import load_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
SEED, ROUNDS, EPOCHS, BATCH, LR, MOMENTUM = 42, 2, 2, 48, 0.05, 0.9
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Training:
    """What a plain loop needs of an example: its samples in the order of the file, its model and its loss."""

    x: Tensor
    y: Tensor
    model: Callable[[], tuple[nn.Module, nn.Module]]
    loss: Loss


def of_the_example(function: str, *arguments: int) -> tuple[Tensor, Tensor]:
    module, _, name = function.partition(":")
    x, y = getattr(importlib.import_module(module), name)(*arguments)
    return torch.from_numpy(x), torch.from_numpy(y)


def mlp(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    layers = [nn.Flatten(), nn.Linear(inputs, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 256)]
    return nn.Sequential(*layers, nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()), nn.Linear(128, outputs)


def classification() -> Training:
    from sklearn.datasets import load_digits  # here, since it takes seconds, and the other workers have no need of it

    images, digits = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float() / 16
    return Training(x, torch.from_numpy(digits).long(), lambda: mlp(64, 10), functional.cross_entropy)


def regression() -> Training:
    x, y = of_the_example("regression:diabetes")
    return Training(x, y[:, None], lambda: mlp(10, 1), functional.huber_loss)


def multilabel() -> Training:
    x, y = of_the_example("multilabel:properties")
    return Training(x, y.float(), lambda: mlp(64, 4), functional.binary_cross_entropy_with_logits)


def segmentation() -> Training:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        found, true = outputs.softmax(1), functional.one_hot(targets, 3).permute(0, 3, 1, 2)
        dice = (2 * (found * true).sum((0, 2, 3)) + 1) / ((found + true).sum((0, 2, 3)) + 1)
        return functional.cross_entropy(outputs, targets) + 0.5 * (1 - dice.mean())

    x, y = of_the_example("segmentation:shapes")
    unet = importlib.import_module("segmentation").unet
    return Training(x[:, None].float() / 255, y, lambda: unet((1, 16, 16), 3), loss)


def language_model() -> Training:
    x, y = of_the_example("language_model:documentation")
    transformer = importlib.import_module("language_model").transformer
    return Training(x, y, lambda: transformer((48,), 128), lambda z, y: functional.cross_entropy(z.mT, y))


TRAININGS = {
    "solo": classification,
    "regression": regression,
    "multilabel": multilabel,
    "segmentation": segmentation,
    "language-model": language_model,
}


PROCESSES = ("regression", "language-model")


def plain(training: Training) -> dict[str, Tensor]:
    """The loop as one would write it without this package."""
    rows = torch.from_numpy(mine(training))
    x, y = training.x[rows], training.y[rows]
    with threads(1), torch.random.fork_rng():
        torch.manual_seed(derive(SEED, "init", "peer0"))
        extractor, head = training.model()
        model = nn.Sequential()
        model.add_module("extractor", extractor)
        model.add_module("head", head)
        optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, fused=True)
        for round in range(1, ROUNDS + 1):
            draws = torch.Generator().manual_seed(derive(SEED, "peer0", round, "order 0"))
            for _ in range(EPOCHS):
                for batch in torch.randperm(len(x), generator=draws).split(BATCH):
                    optimiser.zero_grad()
                    training.loss(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
    return model.state_dict()


def mine(training: Training) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The rows that train the only peer: all but those that are held out, permuted by the `iid` split."""
    order = np.random.default_rng(SEED).permutation(len(training.x))
    kept = order[: len(order) - (360 if len(order) == 1797 and training.y.ndim == 1 else round(0.2 * len(order)))]
    return kept[np.random.default_rng(SEED).permutation(len(kept))]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def alone(example: str, directory: Path, port: int) -> Path:
    """The example's federation.yaml for one peer that trains for itself, by SGD on the whole model."""
    content = YAML(typ="safe").load((EXAMPLES / f"{example}.yaml").read_text())
    training = {"lr": LR, "momentum": MOMENTUM, "epochs": EPOCHS, "batch_size": BATCH}
    content |= {"protocol": {"name": "solo", "like": "fedavg", "settings": training}, "rounds": ROUNDS}
    content["data"] |= {"partition": {"kind": "iid"}}
    content |= {"seed": SEED, "code": str(EXAMPLES), "ring": [{"id": "peer0", "address": f"127.0.0.1:{port}"}]}
    file = directory / "federation.yaml"
    file.write_text(dump_yaml(content))
    return file


@pytest.mark.parametrize("example", TRAININGS)
def test_a_peer_alone_is_a_plain_loop(
    example: str, tmp_path: Path, fork_server: Nursery, ports: Callable[[int], list[int]]
) -> None:
    """Two of them as real processes, the others in this one: those give the same bits."""
    file = alone(example, tmp_path, ports(1)[0])
    if example in PROCESSES:
        made = SmallFederation(tmp_path, load_spec(file), fork_server)
        made.configure("peer0")
        made.run()
    else:
        asyncio.run(run_in_process(load_spec(file), tmp_path))
    found, wanted = load_file(tmp_path / "peer0" / "model.safetensors"), plain(TRAININGS[example]())
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
