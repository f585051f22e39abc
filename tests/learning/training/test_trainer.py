"""Local training: the same as a plain loop, exact to resume, and careful with what is frozen."""

import sys
import threading
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from small_models import batch_norm_model, model, recorded, run, samples
from torch import Tensor, nn
from torch.nn import functional

from peer.errors import FailedError, InputError
from peer.learning.data.samples import InMemory
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.optimiser import SGD, Adam
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer, TrainingStopped

HEAD = Phase("head", 1, Adam(), batch_size=8, keep="head")


EXTRACTOR = Phase("extractor", 2, Adam(), batch_size=8, keep="extractor")


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_phase_is_a_plain_loop_over_shuffled_batches(kind: str) -> None:
    made, batches = recorded()
    data = samples()
    plain = nn.Linear(4, 3)
    plain.load_state_dict(made.module.get_submodule("extractor.layer").state_dict())
    settings = Adam(0.02, 1e-3) if kind == "adam" else SGD(0.05, 0.9, 1e-3)
    loss = Trainer(made, data, 1, "peer0").train(Phase("extractor", 2, settings, batch_size=8), 0)

    optimiser: torch.optim.Optimizer
    if kind == "adam":
        optimiser = torch.optim.Adam(plain.parameters(), lr=0.02, weight_decay=1e-3)
    else:
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    labels = {tuple(x.tolist()): int(y) for x, y in zip(data.x, data.y, strict=True)}
    losses: list[float] = []
    for x in batches:
        optimiser.zero_grad()
        value = functional.cross_entropy(plain(x), torch.tensor([labels[tuple(row)] for row in x.tolist()]))
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses += [value.item()] * len(x)
    assert [len(x) for x in batches] == [8, 8, 8, 8, 5] * 2
    epochs = [torch.cat(batches[:5]), torch.cat(batches[5:])]
    for epoch in epochs:
        assert sorted(map(tuple, epoch.tolist())) == sorted(labels)
    assert not torch.equal(*epochs)
    torch.testing.assert_close(made.vector, torch.cat([p.detach().flatten() for p in plain.parameters()]))
    assert loss == pytest.approx(sum(losses) / 74, rel=1e-6)


def test_the_order_depends_on_seed_peer_round_and_phase() -> None:
    def orders(seed: int, peer: str, round: int) -> list[Tensor]:
        made, batches = recorded()
        trainer = Trainer(made, samples(), seed, peer)
        for _ in range(2):
            trainer.train(Phase("extractor", 1, SGD(0.0), batch_size=37), round)
        return batches

    first = orders(1, "peer0", 0)
    assert all(torch.equal(a, b) for a, b in zip(first, orders(1, "peer0", 0), strict=True))
    others = [first[1], orders(2, "peer0", 0)[0], orders(1, "peer1", 0)[0], orders(1, "peer0", 1)[0]]
    assert not any(torch.equal(first[0], other) for other in others)


def test_training_learns_and_counts_its_accuracy() -> None:
    trainer = Trainer(model(), samples(200), 1, "peer0")
    first = trainer.train(HEAD, 0)
    run(trainer, [EXTRACTOR, HEAD], range(5))
    assert trainer.train(HEAD, 5) < first
    hits = trainer.model.predict(trainer.samples.x) == trainer.samples.y
    assert trainer.accuracy() == pytest.approx(hits.double().mean().item())
    assert trainer.accuracy() > 0.6


def test_the_frozen_part_keeps_every_bit() -> None:
    trainer = Trainer(batch_norm_model(0.5), samples(), 1, "peer0")
    extractor, head = trainer.model.extractor.clone(), trainer.model.head.clone()
    trainer.train(HEAD, 0)
    assert torch.equal(trainer.model.extractor, extractor), "BatchNorm's statistics too"
    assert trainer.model.counters["extractor.1.num_batches_tracked"] == 0
    assert not torch.equal(trainer.model.head, head)
    head = trainer.model.head.clone()
    trainer.train(EXTRACTOR, 0)
    assert torch.equal(trainer.model.head, head)
    assert not torch.equal(trainer.model.extractor, extractor)
    assert trainer.model.counters["extractor.1.num_batches_tracked"] == 10


@pytest.mark.parametrize("make", [model, batch_norm_model, lambda: batch_norm_model(0.5)])
def test_resuming_gives_the_same_bits(make: Callable[[], Model]) -> None:
    phases = [HEAD, EXTRACTOR, Phase("model", 1, SGD(0.01, 0.9), batch_size=8, keep="all")]
    whole = Trainer(make(), samples(), 1, "peer0")
    run(whole, phases, range(3))

    early = Trainer(make(), samples(), 1, "peer0")
    run(early, phases, range(1))
    saved = early.state()
    tensors = {name: tensor.clone() for name, tensor in early.model.state().items()}
    run(early, phases, range(1, 3))  # what was saved does not follow
    late = Trainer(make(), samples(), 1, "peer0")
    late.model.load(tensors)
    late.load_state(saved)
    assert late.state().keys() == saved.keys(), "not lost if saved again before first use"
    run(late, phases, range(1, 3))

    for other in (early, late):
        assert torch.equal(other.model.vector, whole.model.vector)
        assert other.model.sha256() == whole.model.sha256()
    expected = whole.state()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in late.state().items())
    assert {name.split("/")[0] for name in saved} == {"head", "extractor", "all"}


def test_a_large_gradient_takes_no_memory_between_phases() -> None:
    """The bits are those of a small one, which stays."""
    phases = [EXTRACTOR, Phase("model", 1, SGD(0.01, 0.9), batch_size=8, keep="all"), HEAD]

    def trained() -> Model:
        made = build("mlp", Example.zeros((1000,), 3), seed=1)
        data = InMemory(torch.linspace(-1, 1, 20_000).view(20, 1000), torch.arange(20) % 3)
        run(Trainer(made, data, 1, "peer0"), phases, range(2))
        return made

    kept = trained()
    with patch("peer.learning.model.model.LARGE_BYTES", 0):
        forgotten = trained()
    assert torch.equal(forgotten.vector, kept.vector)
    assert kept.gradient[2000:100_000].any()
    assert sys.platform != "linux" or not forgotten.gradient[2000:100_000].any()


def test_an_optimiser_is_kept_by_name_only() -> None:
    def weights(second: Phase, drop: bool = False) -> Tensor:
        trainer = Trainer(model(), samples(), 1, "peer0")
        trainer.train(HEAD, 0)
        if drop:
            trainer.drop("head")
            assert trainer.state() == {}
        trainer.train(second, 0)
        return trainer.model.vector

    fresh = weights(Phase("head", 1, Adam(), batch_size=8))
    assert not torch.equal(weights(HEAD), fresh)
    assert torch.equal(weights(HEAD, drop=True), fresh)


def test_a_kept_optimiser_follows_the_schedule_and_refuses_another_part() -> None:
    trainer = Trainer(model(), samples(), 1, "peer0")
    trainer.train(HEAD, 0)
    before = trainer.model.head.clone()
    trainer.train(Phase("head", 1, Adam(lr=0.0), batch_size=8, keep="head"), 1)
    assert torch.equal(trainer.model.head, before)
    with pytest.raises(ValueError, match="kept for another part"):
        trainer.train(Phase("extractor", 1, Adam(), keep="head"), 2)


def test_state_of_another_model_is_refused() -> None:
    trainer = Trainer(model(), samples(), 1, "peer0")
    trainer.load_state({"head/0/exp_avg": torch.zeros(7)})
    with pytest.raises(InputError, match="belongs to another model"):
        trainer.train(HEAD, 0)


def test_the_pull_corrects_the_gradient_in_place() -> None:
    start = batch_norm_model().vector
    trainer = Trainer(batch_norm_model(), samples(), 1, "peer0")

    def only_back_to_the_start(parameters: Tensor, gradient: Tensor) -> None:
        assert parameters.shape == gradient.shape == start.shape
        gradient.copy_(parameters - start)

    trainable = torch.cat([torch.arange(s.start, s.stop) for s in trainer.model.trainable("model")])
    trainer.model.vector[trainable] += 1
    trainer.train(Phase("model", 1, SGD(0.5), batch_size=8, gradient_hook=only_back_to_the_start), 0)
    moved = trainer.model.vector - start
    torch.testing.assert_close(moved[trainable], torch.full((len(trainable),), 0.5**5))
    assert moved[30:40].abs().sum() > 0, "the running statistics follow the data, not the pull"


def test_dropout_is_the_same_for_peers_that_share_a_process() -> None:
    def train(trainer: Trainer) -> None:
        trainer.train(Phase("model", 20, Adam(), batch_size=8), 0)

    alone = Trainer(batch_norm_model(0.5), samples(), 1, "peer0")
    train(alone)
    together = [Trainer(batch_norm_model(0.5), samples(), 1, peer) for peer in ("peer0", "peer1")]
    threads = [threading.Thread(target=train, args=(trainer,)) for trainer in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(together[0].model.vector, alone.model.vector)
    assert not torch.equal(together[1].model.vector, alone.model.vector)


def test_batch_norm_never_sees_a_batch_of_one() -> None:
    trainer = Trainer(batch_norm_model(), samples(33), 1, "peer0")
    trainer.train(EXTRACTOR, 0)
    assert trainer.model.counters["extractor.1.num_batches_tracked"] == 2 * 4
    Trainer(batch_norm_model(), samples(1), 1, "peer0").train(HEAD, 0)  # frozen, it uses its statistics
    for data, size in ((samples(1), 8), (samples(8), 1)):
        with pytest.raises(InputError, match=r"peer0 has .* and model bn has BatchNorm"):
            Trainer(batch_norm_model(), data, 1, "peer0").train(Phase("model", 1, Adam(), size), 0)


def test_without_batch_norm_one_sample_is_a_batch() -> None:
    made, batches = recorded()
    Trainer(made, samples(17), 1, "peer0").train(Phase("extractor", 1, SGD(), batch_size=8), 0)
    assert [len(x) for x in batches] == [8, 8, 1]


def test_adam_takes_its_betas() -> None:
    def first_weights() -> tuple[Model, nn.Linear]:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            layer = nn.Linear(4, 3)
            return Model(Split(layer, nn.Identity()), settings="linear", example=Example.zeros((4,), 3)), layer

    def ours(settings: Adam) -> Tensor:
        made, _ = first_weights()
        Trainer(made, samples(), 1, "peer0").train(Phase("model", 2, settings, batch_size=8), 0)
        return made.vector

    made, plain = first_weights()
    trainer = Trainer(made, samples(), 1, "peer0")
    optimiser = torch.optim.Adam(plain.parameters(), lr=0.02, betas=(0.5, 0.9))
    for batch in trainer.batches(8, 0, epochs=2):
        optimiser.zero_grad(set_to_none=False)
        value = functional.cross_entropy(plain(trainer.samples.x[batch]), trainer.samples.y[batch])
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    torch.testing.assert_close(ours(Adam(0.02, betas=(0.5, 0.9))), made.vector)
    assert torch.equal(ours(Adam(0.02, betas=(0.9, 0.999))), ours(Adam(0.02)))
    assert not torch.equal(ours(Adam(0.02, betas=(0.5, 0.9))), ours(Adam(0.02)))


def test_nothing_to_train_changes_nothing() -> None:
    made, _ = recorded()
    trainer = Trainer(made, samples(), 1, "peer0")
    before = made.vector.clone()
    value = functional.cross_entropy(made(trainer.samples.x), trainer.samples.y).item()
    assert trainer.train(Phase("head", 1, Adam()), 0) == pytest.approx(value)
    assert trainer.train(Phase("model", 0, Adam()), 0) == pytest.approx(value)
    assert torch.equal(made.vector, before)


def test_stop_ends_training_at_the_next_batch() -> None:
    trainer = Trainer(model(), samples(), 1, "peer0")
    calls: list[int] = []

    def gradient_hook(parameters: Tensor, gradient: Tensor) -> None:
        calls.append(1)
        trainer.stop()

    with pytest.raises(TrainingStopped):
        trainer.train(Phase("model", 9, SGD(), batch_size=8, gradient_hook=gradient_hook), 0)
    assert len(calls) == 1
    with pytest.raises(TrainingStopped):
        trainer.train(HEAD, 1)


def test_a_model_that_diverges_is_a_failure_in_one_sentence() -> None:
    trainer = Trainer(model(), samples(), 1, "peer3")
    with pytest.raises(
        FailedError, match=r"peer3: training diverged in round 4 .* learning rate, now 1e\+38"
    ) as caught:
        trainer.train(Phase("model", 3, SGD(1e38), batch_size=8), 4)
    assert "\n" not in str(caught.value)


def test_no_samples_are_refused() -> None:
    with pytest.raises(InputError, match="peer0 has no training samples"):
        Trainer(model(), samples(0), 1, "peer0")
