"""Random streams: told apart by everything they are for, and the process's own left alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.learning.randomness import derive, global_stream, torch_generator

PATHS = st.lists(st.one_of(st.integers(0, 9), st.text("a\x1f'1", max_size=3)), max_size=3)


@given(PATHS, PATHS)
def test_different_paths_give_different_seeds(a: list[int | str], b: list[int | str]) -> None:
    assert (derive(1, *a) == derive(1, *b)) == (a == b)


def test_a_seed_never_changes_between_versions_and_kinds_of_integers() -> None:
    assert derive(42, "peer3", 7, "order") == derive(42, "peer3", np.int64(7), "order")
    assert derive(42, "peer3", 7, "order") == 0x92C4EC27267BDA7E


def test_generators_repeat_themselves() -> None:
    a, b = (torch.rand(3, generator=torch_generator(1, "peer0", 2, "order")) for _ in range(2))
    assert torch.equal(a, b)


def test_the_global_stream_repeats_itself_and_is_put_back() -> None:
    before = torch.get_rng_state()
    with global_stream(5):
        first = torch.rand(3)
    with global_stream(5):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(RuntimeError), global_stream(5):
        torch.rand(-1)
    assert torch.equal(torch.get_rng_state(), before)
