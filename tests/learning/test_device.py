"""Devices by name: what is there is taken, what is not is told."""

import pytest
import torch

from peer.errors import InputError
from peer.learning.device import choose_device


@pytest.mark.parametrize(("gpus", "chosen"), [(0, "cpu"), (2, "cuda")])
def test_auto_takes_a_gpu_where_there_is_one(gpus: int, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    assert choose_device("auto") == torch.device(chosen)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="device `cuda:2`: this machine shows 2 CUDA devices; use `auto` or `cpu`"):
        choose_device("cuda:2")
    with pytest.raises(InputError, match="device `mps`: this machine has none"):
        choose_device("mps")
