"""A loop of one's own: its batches and logits are those of a phase, and it can be stopped."""

import pytest
import torch
from small_models import batch_norm_model, model, recorded, run, samples
from torch import Tensor
from torch.nn import functional

from peer.learning.data.samples import InMemory
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase, Training
from peer.learning.training.trainer import Trainer, TrainingStopped


@pytest.mark.parametrize("phases", [0, 1, 2])
def test_batches_are_those_of_a_phase_in_their_place(phases: int) -> None:
    def before() -> tuple[Trainer, list[Tensor]]:
        made, seen = recorded()
        trainer = Trainer(made, samples(33), 1, "peer0")
        run(trainer, [Phase("extractor", 1, SGD(), batch_size=16)] * phases, [4])
        seen.clear()
        return trainer, seen

    trainer, seen = before()
    trainer.train(Phase("extractor", 2, SGD(), batch_size=8), 4)
    own, _ = before()
    batches = list(own.batches(8, 4, epochs=2))
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 1] * 2
    assert all(batch.dtype == torch.int64 for batch in batches)
    assert all(torch.equal(own.samples.x[batch], x) for batch, x in zip(batches, seen, strict=True))


def test_batches_count_as_a_phase_from_their_call_on_and_anew_in_each_round() -> None:
    def orders(round: int, calls: int) -> list[list[int]]:
        trainer = Trainer(model(), samples(), 1, "peer0")
        trainer.batches(8, 3)
        return [torch.cat(list(trainer.batches(8, round))).tolist() for _ in range(calls)]

    first, second, third = orders(4, 3)
    assert first != second != third != first
    assert orders(3, 2)[1] != orders(3, 2)[0] != first
    resumed = Trainer(model(), samples(), 1, "peer0")
    assert torch.cat(list(resumed.batches(8, 4))).tolist() == first
    early, late = resumed.batches(8, 5), resumed.batches(8, 5)
    assert torch.cat(list(late)).tolist() == orders(5, 2)[1], "numbered by the call and not by the first use"
    assert torch.cat(list(early)).tolist() == orders(5, 1)[0]


def test_batches_leave_no_single_sample_to_batch_norm() -> None:
    trainer = Trainer(batch_norm_model(), samples(33), 1, "peer0")
    assert [len(batch) for batch in trainer.batches(8, 1)] == [8, 8, 8, 9]
    with pytest.raises(ValueError, match="at least one sample, not 0"):
        trainer.batches(0, 1)


def test_a_loop_over_batches_and_logits_learns_what_a_phase_does() -> None:
    phase = Phase("model", 3, SGD(0.1), batch_size=8)
    ours, own = (Trainer(model(), samples(), 1, "peer0") for _ in range(2))
    ours.train(phase, 2)
    for batch in own.batches(8, 2, epochs=3):
        vector = own.model.vector.clone().requires_grad_()
        logits = own.logits(vector, own.samples.x[batch], True, 2)
        (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, own.samples.y[batch]), vector)
        own.model.vector.sub_(gradient, alpha=0.1)
    torch.testing.assert_close(own.model.vector, ours.model.vector)


def test_dropout_in_logits_depends_on_seed_peer_round_and_call() -> None:
    x = samples().x

    def answers(seed: int, peer: str, round: int) -> list[Tensor]:
        trainer = Trainer(batch_norm_model(0.5), samples(), seed, peer)
        trainer.logits(trainer.model.vector, x, True, 99)
        found = []
        for _ in range(2):
            found.append(trainer.logits(trainer.model.vector, x, True, round))
            trainer.logits(trainer.model.vector, x, False, round)
        return found

    first = answers(1, "peer0", 0)
    state = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(first, answers(1, "peer0", 0), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    others = [first[1], answers(2, "peer0", 0)[0], answers(1, "peer1", 0)[0], answers(1, "peer0", 1)[0]]
    assert not any(torch.equal(first[0], other) for other in others)


def test_stop_ends_a_loop_of_ones_own() -> None:
    trainer = Trainer(model(), samples(), 1, "peer0")
    batches = trainer.batches(8, 1)
    next(batches)
    trainer.stop()
    with pytest.raises(TrainingStopped):
        next(batches)
    with pytest.raises(TrainingStopped):
        trainer.logits(trainer.model.vector, trainer.samples.x, False, 1)


def test_a_balanced_sampler_draws_each_class_equally_often() -> None:
    y = torch.tensor([0] * 900 + [1] * 90 + [3] * 10)
    rare = InMemory(torch.arange(4000.0).reshape(1000, 4), y)
    trainer = Trainer(model(), rare, 1, "peer0", Training(sampler="balanced"))
    drawn = torch.cat(list(trainer.batches(100, 1, epochs=3)))
    assert len(drawn) == 3000
    assert torch.bincount(y[drawn]).tolist() == pytest.approx([1000, 1000, 0, 1000], abs=120)
    assert set(range(990, 1000)) <= set(drawn.tolist())
    again = Trainer(model(), rare, 1, "peer0", Training(sampler="balanced"))
    assert torch.equal(torch.cat(list(again.batches(100, 1, epochs=3))), drawn)
