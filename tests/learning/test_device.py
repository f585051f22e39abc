"""Devices by name: what is there is taken, what is not is told."""

import os

import pytest
import torch

from peer.errors import FailedError, InputError
from peer.learning.device import choose_device, device_errors, in_turn, prepare_device


@pytest.mark.parametrize(("gpus", "chosen"), [(0, "cpu"), (2, "cuda:0")])
def test_auto_takes_a_gpu_where_there_is_one(gpus: int, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert choose_device("auto") == torch.device(chosen)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="device `cuda:2`: this machine shows 2 CUDA devices; use `auto` or `cpu`"):
        choose_device("cuda:2")


def test_many_peers_go_round_the_gpus_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("auto", "cuda"):
        assert [in_turn(name, number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    for name in ("cpu", "cuda:1"):
        assert [in_turn(name, number) for number in range(3)] == [name] * 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [in_turn("auto", number) for number in range(2)] == ["auto", "auto"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [in_turn("auto", number) for number in range(2)] == ["auto", "auto"]


def test_a_gpu_repeats_its_bits_and_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: told.append(given))
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        prepare_device(torch.device("cpu"), 1, True)
        assert not torch.are_deterministic_algorithms_enabled()
        prepare_device(torch.device("cuda:1"), None, False)
        assert not told
        assert not torch.are_deterministic_algorithms_enabled()
        prepare_device(torch.device("cuda:1"), 0.25, True)
        assert told == [(0.25, torch.device("cuda:1"))]
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        prepare_device(torch.device("cuda:1"), None, False)
        assert not torch.are_deterministic_algorithms_enabled(), "the next federation of the process"
    finally:
        torch.use_deterministic_algorithms(False)


def test_only_a_full_gpu_is_told_as_one() -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"), device_errors():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(FailedError, match=r"full \(CUDA error: out of memory\); set"), device_errors():
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported at some other call.")


def test_what_would_give_other_bits_each_time_is_told_with_the_way_out() -> None:
    said = (
        "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation"
    )
    told = r"GPU adaptive_avg_pool2d_backward_cuda gives .*deterministic: false"
    with pytest.raises(FailedError, match=told), device_errors():
        raise RuntimeError(said)
