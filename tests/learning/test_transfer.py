"""Vectors to a model's device and from it: on a CPU none is copied; a GPU's are, and nobody waits for them.

There is no GPU where the tests run. `meta` shows what is asked of one.
"""

import pytest
import torch
from meta_device import META, Copy, Device

from peer.learning.device import Transfers, copies, memory_for

CPU = torch.device("cpu")


def test_on_a_cpu_nothing_is_copied() -> None:
    vector, transfers = torch.arange(6.0, requires_grad=True), Transfers(CPU)
    fetched = transfers.fetch(vector[2:])
    assert fetched.copied is None
    assert fetched.vector.data_ptr() == vector[2:].data_ptr()
    assert not fetched.vector.requires_grad
    assert transfers.to_device(fetched.vector) is fetched.vector
    assert not memory_for(CPU)(3, torch.float32).is_pinned()


def test_what_leaves_is_in_one_piece() -> None:
    turned = torch.arange(6.0).view(2, 3).T[0]
    assert not turned.is_contiguous()
    assert Transfers(CPU).fetch(turned).vector.tolist() == [0, 3]


def test_copies_are_in_one_piece_and_no_views() -> None:
    turned = torch.arange(6.0).view(2, 3).T
    made = copies({"turned": turned, "flag": torch.tensor(True)})
    assert torch.equal(made["turned"], turned)
    assert made["turned"].is_contiguous()
    turned.zero_()
    assert made["turned"].sum() == 15


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_a_vector_leaves_a_device_by_one_copy_into_pinned_memory(dtype: torch.dtype) -> None:
    live = torch.empty(10, dtype=dtype, device=META)
    with Device() as device:
        fetched = Transfers(META).fetch(live[2:9])
    assert device.fetched == [Copy(7, non_blocking=True, pinned=True)]
    assert (fetched.vector.device, fetched.vector.dtype, fetched.vector.shape) == (CPU, dtype, (7,))


def test_what_arrives_in_pinned_memory_goes_to_the_device_by_one_copy() -> None:
    with Device() as device:
        arrived = memory_for(META)(7, torch.float32)
        there = Transfers(META).to_device(arrived)
        Transfers(META).copy_into(arrived, torch.empty(7, device=META))
    assert there.device == META
    assert device.placed == [Copy(7, non_blocking=True, pinned=True)] * 2
    assert not device.fetched


@pytest.mark.parametrize("where", [CPU, META])
def test_what_changes_afterwards_does_not_change_what_left_a_device(where: torch.device) -> None:
    """It is copied where it lies: on the device before it is fetched from there."""
    live = torch.ones(4, device=where)
    with Device() as device:
        fetched = Transfers(META).fetch(live)
    for left in [fetched.vector, *device.sources]:
        assert left.untyped_storage()._cdata != live.untyped_storage()._cdata
