"""Peers on a real GPU: every protocol, models and precisions that a GPU computes by kernels of its own, and what a GPU
says of itself. `make test-engines` runs this where there is one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from every_protocol import ADAM, SETTINGS, SGD, keys
from faults.accidents import start_and_die
from gpu import GPU
from real_peers import Build, SmallFederation, digests
from safetensors.torch import load_file
from test_examples import EXAMPLES, FILES, NEEDED, quick, script

from peer.learning.device import choose_device
from peer.learning.tasks import _cross_entropy
from peer.runtime.in_process import run_in_process
from peer.runtime.resources import measure

pytestmark = [GPU, pytest.mark.timeout(600)]

DEVICE = "cuda"
MOMENTS = ("training:2", "communicating:2", "overtaken:2")
"""When a peer is killed: in its second batch, at its second message, evaluating round 2 when others are in round 3."""
IMAGES = {
    "cnn": {"model": "cnn"},
    "resnet18": {"model": "resnet18"},
    "mobilenet_v2": {"model": "mobilenet_v2"},
    "momentum": {"model": "cnn-small", "training": {"optimiser": {"name": "SGD", "momentum": 0.9}}},
    "AdamW": {"model": "cnn-small", "training": {"optimiser": "AdamW"}},
    "bfloat16": {"model": "cnn5", "training": {"precision": "bfloat16"}},
    "float16": {"model": "cnn5", "training": {"precision": "float16"}},
    "accumulated": {"model": "cnn-xu", "training": {"accumulate": 2, "clip_gradient": 1.0}},
    "sent as bfloat16": {"model": "cnn-xu", "wire": "bfloat16"},
}


def on(device: str, federation: SmallFederation) -> SmallFederation:
    for id in federation.ids:
        federation.configure(id, device=device)
    return federation


def vectors(federation: SmallFederation) -> dict[str, torch.Tensor]:
    """Each peer's model, float32 (n,)."""
    made = {id: load_file(federation.directory / id / "model.safetensors") for id in federation.ids}
    return {id: torch.cat([one[name].flatten().float() for name in sorted(one)]) for id, one in made.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_protocol_ends_in_the_same_bits_after_deaths(name: str, federation: Build) -> None:
    """And near those of the CPU."""
    data = {"name": "digits", "limit": 300, "validation": 0.2}
    settings = {"data": data, "rounds": 3, "patience": 120, **keys(name, ("peer0", "peer1", "peer2", "peer3"))}
    calm, deadly, reference = (federation({"name": name, **SETTINGS[name]}, 4, **settings) for _ in range(3))
    results = on(DEVICE, calm).run()
    trained = [id for id in calm.ids if any(one["loss"] is not None for one in results[id]["history"])]
    moments = MOMENTS if any(result["tensor_bytes_sent"] for result in results.values()) else MOMENTS[:1]
    start_and_die(on(DEVICE, deadly), dict(zip(trained, moments, strict=False)))
    assert deadly.wait(240) == dict.fromkeys(deadly.ids, 0), deadly.account()
    assert digests(deadly.results()) == digests(results)
    reference.run()
    near = vectors(reference)
    for id, vector in vectors(calm).items():
        torch.testing.assert_close(vector, near[id], rtol=0.05, atol=0.02)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random images of three channels: what cuDNN has many kernels for."""
    random, arrays = np.random.default_rng(0), {}
    for part, samples in (("train", 900), ("test", 100)):
        arrays[f"x_{part}"] = random.integers(0, 256, (samples, 3, 32, 32), np.uint8)
        arrays[f"y_{part}"] = np.arange(samples) % 10
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize("name", IMAGES)
def test_convolutions_end_in_the_same_bits_after_deaths(name: str, images: str, federation: Build) -> None:
    settings = {"data": {"name": "npz", "path": images}, "rounds": 3, **IMAGES[name]}
    calm, deadly = (on(DEVICE, federation({"name": "fedprox", **SGD}, 3, **settings)) for _ in range(2))
    results = calm.run()
    start_and_die(deadly, dict(zip(deadly.ids, MOMENTS, strict=False)))
    assert deadly.wait() == dict.fromkeys(deadly.ids, 0), deadly.account()
    assert digests(deadly.results()) == digests(results)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_every_example_runs(file: Path, tmp_path: Path) -> None:
    if file.stem in NEEDED:
        pytest.importorskip(NEEDED[file.stem])
    script("own_data").write_csv(tmp_path / "data" / "spirals.csv")
    script("practices").write(tmp_path / "data")
    copied = tmp_path / "examples"
    copied.mkdir()
    for one in EXAMPLES.iterdir():
        if one.is_file():
            (copied / one.name).write_bytes(one.read_bytes())
    spec = quick(copied / file.name)
    runtimes = await run_in_process(spec, tmp_path / "run", device=DEVICE)
    assert {one.setup.model.vector.device.type for one in runtimes.values()} == {choose_device(DEVICE).type}
    assert all(torch.isfinite(one.setup.model.vector).all() for one in runtimes.values())


def test_one_without_room_ends_with_advice(images: str, federation: Build) -> None:
    data = {"name": "npz", "path": images}
    made = federation({"name": "rdfl", **SGD}, 3, model="resnet18", data=data, rounds=1)
    for id in made.ids:
        made.configure(id, device=DEVICE, gpu_memory=0.0005)
    made.start()
    assert made.wait() == dict.fromkeys(made.ids, 1), made.account()
    for id in made.ids:
        last = made.log(id).splitlines()[-1]
        assert last.startswith("dfl-peer: the GPU's memory is full (CUDA out of memory.")
        assert "set a smaller `batch_size`, run fewer peers on this GPU" in last
        assert "Traceback" not in made.log(id)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_classes_of_many_places_have_the_loss_that_they_have_on_the_cpu(reduction: str) -> None:
    random = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(3, 4, 5, 6, generator=random), torch.randint(4, (3, 5, 6), generator=random)
    there = _cross_entropy(outputs.to(DEVICE), targets.to(DEVICE), reduction, ignore=2)
    torch.testing.assert_close(there.cpu(), _cross_entropy(outputs, targets, reduction, ignore=2))


def test_a_gpu_says_what_it_is() -> None:
    device = choose_device(DEVICE)
    found = measure(device, 10, {})
    assert found.gpu == torch.cuda.get_device_name(device)
    assert 0 < found.free_gpu_memory_bytes <= found.gpu_memory_bytes
    pytest.importorskip("pynvml", reason="NVML's package is missing: pip install 'dfl[gpu]'")
    assert 0 <= found.gpu_busy <= 1
    assert found.HasField("gpu_busy")


POOLED = """
from torch import nn

def net(shape, classes):
    pool = nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return pool, nn.Linear(128, classes)
"""


def test_what_cannot_be_computed_twice_alike_ends_the_run(federation: Build, tmp_path: Path) -> None:
    (tmp_path / "pooled.py").write_text(POOLED)
    settings = {"model": "pooled:net", "code": str(tmp_path), "rounds": 1}
    made = on(DEVICE, federation({"name": "fibfl", **ADAM}, 3, **settings))
    made.start()
    assert made.wait() == dict.fromkeys(made.ids, 1), made.account()
    assert "adaptive_avg_pool2d_backward_cuda gives other bits each time" in made.log("peer0").splitlines()[-1]
    on(DEVICE, federation({"name": "fibfl", **ADAM}, 3, **settings, training={"deterministic": False})).run()
