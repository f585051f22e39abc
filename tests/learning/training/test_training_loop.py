"""`training.loop`: what a loop of the user's own may rely on, and what stands whatever it does."""

import importlib
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from small_models import batch_norm_model, model, samples
from torch import Tensor, nn
from torch.utils.data import DataLoader

from peer.errors import DivergedError, InputError
from peer.learning.model.layout import ModelPart, Patterned, Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.training import training_loop
from peer.learning.training.checks import try_training
from peer.learning.training.optimiser import SGD, Adam, Optimiser
from peer.learning.training.phase import PROTOCOL_DEFAULTS, OwnFunction, Phase, Training
from peer.learning.training.trainer import Trainer, TrainingStopped
from peer.plugins import UserCodeError

N = 37
PHASE = Phase("model", 2, SGD(0.05, 0.9), 8, keep="model")


def fit(loop: Any) -> None:
    optimiser = loop.optimiser()
    for _ in range(loop.epochs):
        for inputs, targets, _ in loop.batches():
            optimiser.zero_grad()
            loop.loss(loop.model(inputs), targets).backward()
            optimiser.step()


class OwnLoop(OwnFunction):
    """A loop that needs no module to be found in."""

    called: Any = None

    def function(self) -> Callable[..., Any]:
        return self.called


def by(loop: Callable[[Any], Any]) -> Training:
    return Training.model_construct(**vars(PROTOCOL_DEFAULTS) | {"loop": OwnLoop(name="my:loop", called=loop)})


def trainer(model: Model, how: Training) -> Trainer:
    return Trainer(model, samples(N), 1, "peer0", how)


def after(how: Training, some: Iterable[Phase] = (PHASE,), rounds: int = 3, made: Model | None = None) -> Tensor:
    """The vector after some rounds, in each of which the peer is killed and resumed."""
    made, state = made or batch_norm_model(0.3), dict[str, Tensor]()
    for round in range(1, rounds + 1):
        one = trainer(made, how)
        one.load_state(state)
        for phase in some:
            one.train(phase, round)
        state = one.state()
    return made.vector.clone()


HEAD_THEN_EXTRACTOR = (
    Phase("head", 1, Adam(0.01), 8, keep="head"),
    Phase("extractor", 2, Adam(0.01), 8, keep="extractor"),
)


def uphill(parameters: Tensor, gradient: Tensor) -> None:
    gradient.sub_(parameters, alpha=0.3)


@pytest.mark.parametrize(
    "some",
    [
        (PHASE,),
        (Phase("model", 2, SGD(0.05), 8, gradient_hook=uphill),),
        (Phase("model", 1, Optimiser(name="AdamW", lr=0.01, weight_decay=0.1), 8, keep="one"),),
        (Phase("model", 0, SGD(0.05), 8), PHASE),
        (Phase("head", 1, SGD(0.05, 0.9), 8, keep="head"), Phase("extractor", 2, SGD(0.05), 8)),
    ],
    ids=["momentum that lasts", "corrected", "AdamW", "no epochs", "two phases"],
)
def test_the_page_s_first_loop_trains_as_none_does(some: tuple[Phase, ...]) -> None:
    """But for last bits: a kernel that takes all tensors as one rounds the ends of each otherwise."""
    torch.testing.assert_close(after(by(fit), some), after(PROTOCOL_DEFAULTS, some), rtol=1e-5, atol=1e-6)


def with_frozen_stem() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        stem = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).requires_grad_(False)
        extractor = nn.Sequential(stem, nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        head = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
        module = nn.Sequential(extractor, head)
    split = Patterned(module, ("1.*",))
    return Model(split, settings="frozen", example=Example.zeros((4,), 3))


def as_frameworks_do(loop: Any) -> None:
    optimiser = torch.optim.AdamW(loop.model.parameters(), lr=0.05, weight_decay=0.5)
    loop.model.train()
    for inputs, targets, _ in loop.batches():
        loop.loss(loop.model(inputs), targets).backward()
        optimiser.step()
        optimiser.zero_grad()


@pytest.mark.parametrize("part", ["extractor", "head"])
def test_what_rests_stays_whoever_calls_train_on_the_whole(part: ModelPart) -> None:
    made = with_frozen_stem()
    trainer(made, PROTOCOL_DEFAULTS).train(Phase("model", 1, SGD(0.05), 8), 1)  # leaves a gradient everywhere
    before, frozen, counters = made.vector.clone(), {**made.frozen}, {k: int(v) for k, v in made.counters.items()}
    frozen = {name: tensor.clone() for name, tensor in frozen.items()}
    trainer(made, by(as_frameworks_do)).train(Phase(part, 1, SGD(0.05), 8), 2)
    for entry in made.layout:
        changed = not torch.equal(entry.view(made.vector), entry.view(before))
        assert changed == (entry.part == part), entry.name
    assert all(torch.equal(tensor, made.frozen[name]) for name, tensor in frozen.items())
    counted = {name for name, value in made.counters.items() if int(value) != counters[name]}
    assert counted == {"0.2.num_batches_tracked" if part == "extractor" else "1.0.num_batches_tracked"}
    made.train()
    assert made.module.training


def test_what_rests_must_not_be_trained() -> None:
    def thaw(loop: Any) -> None:
        loop.model.requires_grad_(True)
        as_frameworks_do(loop)

    with pytest.raises(InputError, match="has changed what rests while the head is trained"):
        trainer(batch_norm_model(), by(thaw)).train(Phase("head", 1, SGD(0.05), 8), 1)


def test_a_closure_is_corrected_after_its_backward_pass() -> None:
    def closing(loop: Any) -> None:
        optimiser = loop.optimiser()
        for _ in range(loop.epochs):
            for inputs, targets, _ in loop.batches():

                def closure(inputs: Any = inputs, targets: Any = targets) -> Tensor:
                    optimiser.zero_grad()
                    loss: Tensor = loop.loss(loop.model(inputs), targets)
                    loss.backward()
                    return loss

                optimiser.step(closure)

    phase = Phase("model", 2, SGD(0.05), 8, gradient_hook=uphill)
    assert torch.equal(after(by(closing), [phase]), after(by(fit), [phase]))


def without_optimiser(loop: Any) -> None:
    for inputs, targets, _ in loop.batches():
        loss = loop.loss(loop.model(inputs), targets)
        learning = [parameter for parameter in loop.model.parameters() if parameter.requires_grad]
        with torch.no_grad():
            for parameter, gradient in zip(learning, torch.autograd.grad(loss, learning), strict=True):
                parameter.sub_(gradient, alpha=0.05)


def test_a_correction_needs_an_optimiser_of_torch() -> None:
    one = trainer(batch_norm_model(), by(without_optimiser))
    one.train(PHASE, 1)
    with pytest.raises(InputError, match="this protocol corrects each gradient"):
        one.train(Phase("model", 1, SGD(0.05), 8, gradient_hook=uphill), 2)


def test_a_copy_that_learns_in_vain_is_found_before_the_start() -> None:
    def elsewhere(loop: Any) -> None:
        copy = nn.Linear(4, 3)
        torch.optim.SGD(copy.parameters(), lr=0.1).step()

    made = batch_norm_model()
    before = made.vector.clone()
    with pytest.raises(InputError, match="elsewhere` has trained something else"):
        try_training(made, samples(2), (PHASE,), by(elsewhere), 3)
    for how in (by(fit), by(without_optimiser)):
        try_training(made, samples(2), (PHASE, Phase("model", 0, SGD(0.1), 8)), how, 3)
    assert torch.equal(made.vector, before)


def test_what_it_prints_is_no_part_of_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def talks(loop: Any) -> None:
        print("Epoch 0")
        fit(loop)

    try_training(batch_norm_model(), samples(2), (PHASE,), by(talks), 3)
    assert capsys.readouterr().out == ""


def test_tensors_that_a_framework_moved_are_taken_back() -> None:
    def moving(loop: Any) -> None:
        for tensor in (*loop.model.parameters(), *loop.model.buffers()):
            tensor.data = tensor.data.clone()
        fit(loop)

    made = batch_norm_model(0.3)
    moved = after(by(moving), made=made)
    assert torch.equal(moved, after(by(fit)))
    first = made.layout[0]
    assert made.module.get_parameter(first.name).data_ptr() == first.view(made.vector).data_ptr()


def from_a_loader(loop: Any) -> dict[str, float]:
    optimiser = torch.optim.Adam(loop.model.parameters(), lr=0.01)
    loop.keep(optimiser)
    calls = loop.state.setdefault("calls", torch.zeros(()))
    losses = []
    for inputs, targets in DataLoader(loop.data, loop.batch_size, shuffle=True):
        optimiser.zero_grad()
        noise = np.random.standard_normal() + random.random()
        loss = loop.loss(loop.model(inputs + 0.01 * noise), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    loop.state["calls"] = calls + 1
    return {"loss": float(np.mean(losses)), "calls": calls, "seed": loop.seed, "nothing": None}


@pytest.mark.parametrize("some", [(PHASE,), HEAD_THEN_EXTRACTOR], ids=["one phase", "two"])
def test_what_it_keeps_and_draws_goes_on_to_the_bit_after_a_death(some: tuple[Phase, ...]) -> None:
    made = batch_norm_model(0.3)
    whole = trainer(made, by(from_a_loader))
    for round in (1, 2, 3):
        random.seed(round)  # of the process: no draw depends on it
        for phase in some:
            whole.train(phase, round)
    assert torch.equal(after(by(from_a_loader), some), made.vector)
    assert whole.figures["calls"] == 3 * len(some) - 1
    again = trainer(batch_norm_model(0.3), by(from_a_loader))
    again.train(some[-1], 3)
    assert again.figures["calls"] == 0


def test_seeds_differ_by_phase_round_and_peer() -> None:
    seeds = set[int]()
    how = by(lambda loop: (fit(loop), seeds.add(loop.seed))[-1])
    for peer in ("peer0", "peer1"):
        for round in (1, 2):
            one = Trainer(batch_norm_model(), samples(N), 1, peer, how)
            for phase in HEAD_THEN_EXTRACTOR:
                one.train(phase, round)
    assert len(seeds) == 8


def test_an_epoch_is_whole_even_after_one_that_was_left() -> None:
    seen: list[list[int]] = []

    def leaving(loop: Any) -> None:
        for number in range(3):
            seen.append([])
            for batch in loop.batches():
                seen[-1] += batch.positions.tolist()
                if number == 1:
                    break
        fit(loop)

    trainer(batch_norm_model(), by(leaving)).train(PHASE, 1)
    assert [len(one) for one in seen] == [N, 8, N]
    assert {*seen[0]} == {*seen[2]} == {*range(N)}
    assert seen[0] != seen[2]


def test_a_data_set_as_torch_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def looking(loop: Any) -> None:
        fit(loop)
        assert len(loop.data) == N == len([*loop.data])
        x, y = loop.data[-1]
        assert torch.equal(x, samples(N).x[-1])  # type: ignore[attr-defined]
        assert y.shape == ()
        with pytest.raises(IndexError):
            loop.data[N]
        monkeypatch.setattr(training_loop, "get_worker_info", lambda: SimpleNamespace(id=0))
        with pytest.raises(RuntimeError, match="write num_workers=0"):
            loop.data[0]

    trainer(batch_norm_model(), by(looking)).train(PHASE, 1)


def test_the_loss_is_what_it_returns_or_is_measured() -> None:
    def returning(value: Any) -> float:
        def loop(loop: Any) -> Any:
            fit(loop)
            return value

        return trainer(batch_norm_model(), by(loop)).train(PHASE, 1)

    assert returning(0.25) == returning(torch.tensor(0.25, requires_grad=True)) == returning({"loss": 0.25}) == 0.25
    assert 0 < returning(None) == returning({}) < 1.2
    for wrong in ("low", {"loss": [1.0, 2.0]}, torch.ones(2)):
        with pytest.raises(UserCodeError, match="it must return nothing, its mean loss, or a dict of numbers"):
            returning(wrong)
    with pytest.raises(DivergedError, match=r"`test_training_loop:.*` returned a loss of nan in round 1; correct it"):
        returning(float("nan"))


def test_a_model_that_is_not_finite_names_the_loop() -> None:
    def diverging(loop: Any) -> None:
        fit(loop)
        loop.state["kept"] = torch.ones(1)
        with torch.no_grad():
            next(loop.model.parameters()).fill_(torch.inf)

    with pytest.raises(DivergedError, match="left the model not finite in round 1"):
        trainer(batch_norm_model(), by(diverging)).train(PHASE, 1)


def test_what_it_raises_names_it() -> None:
    def failing(loop: Any) -> None:
        raise LookupError("no such thing")

    with pytest.raises(UserCodeError, match=r"failing` failed: LookupError: no such thing \(.*test_training_loop.py:"):
        trainer(batch_norm_model(), by(failing)).train(PHASE, 1)


@pytest.mark.parametrize("swallowed", [False, True])
def test_it_ends_when_it_is_told_to(swallowed: bool) -> None:
    def stopped(loop: Any) -> None:
        one.stop()
        with suppress(Exception) if swallowed else nullcontext():  # as frameworks do
            fit(loop)

    one = trainer(batch_norm_model(), by(stopped))
    with pytest.raises(TrainingStopped):
        one.train(PHASE, 1)


def test_what_it_keeps_are_tensors_of_their_own() -> None:
    for value in (3, "text"):
        with pytest.raises(UserCodeError, match="only tensors are kept"):
            trainer(batch_norm_model(), by(lambda loop, value=value: loop.state.update(kept=value))).train(PHASE, 1)
    with pytest.raises(UserCodeError, match="a view of the model"):
        trainer(batch_norm_model(), by(lambda loop: loop.state.update(w=next(loop.model.parameters())))).train(PHASE, 1)


def test_a_phase_with_a_loss_of_its_own_is_refused() -> None:
    def own(outputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return outputs.square().mean()

    with pytest.raises(InputError, match="a loss or a step of the protocol's own"):
        trainer(batch_norm_model(), by(fit)).train(Phase("model", 1, SGD(0.1), 8, loss=own), 1)


def test_16_bits_are_refused() -> None:
    low = Split(nn.Linear(4, 5), nn.Linear(5, 3).to(torch.bfloat16))
    low.head.forward = lambda x, layer=low.head: nn.functional.linear(x.bfloat16(), layer.weight, layer.bias).float()
    made = Model(low, settings="low", example=Example.zeros((4,), 3))
    with pytest.raises(InputError, match=r"head.weight is bfloat16.*`dtype: float32`"):
        trainer(made, by(fit)).train(PHASE, 1)


@pytest.mark.parametrize(
    ("beside", "named"),
    [({"optimiser": "AdamW"}, "optimiser"), ({"accumulate": 2}, "accumulate"), ({"step": "a:b"}, "step")],
)
def test_it_excludes_the_other_keys(beside: dict[str, Any], named: str) -> None:
    Training.model_validate({"loop": "a:b", "deterministic": False})  # it says how to compute, not how to train
    with pytest.raises(ValidationError, match=f"`loop` trains by itself; leave out `{named}`"):
        Training.model_validate({"loop": "my_loops:fit", **beside})
    written = Training.model_validate({"loop": {"name": "my_loops:fit", "warmup": 10}}).model_dump(mode="json")
    assert Training.model_validate(written).loop == OwnFunction(name="my_loops:fit", warmup=10)  # type: ignore[call-arg]


def test_its_arguments_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counted_loops.py").write_text("given = []\ndef fit(loop, warmup=0):\n    given.append(warmup)\n")
    monkeypatch.syspath_prepend(tmp_path)
    how = Training.model_validate({"loop": {"name": "counted_loops:fit", "warmup": 10}})
    trainer(batch_norm_model(), how).train(PHASE, 1)
    assert importlib.import_module("counted_loops").given == [10]


CORRECTED = Phase("model", 2, SGD(0.05), 8, gradient_hook=uphill)


def stepping(
    *, fused: bool = False, optimisers: int = 1, scaled: bool = False, moved: bool = False
) -> Callable[..., None]:
    """SGD in other ways that all come to the same."""

    def loop(loop: Any) -> None:
        parameters = [*loop.model.parameters()]
        cuts = [parameters[start::optimisers] for start in range(optimisers)]
        made = [torch.optim.SGD(some, lr=loop.lr, fused=fused) for some in cuts]
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        for _ in range(loop.epochs):
            for inputs, targets, _ in loop.batches():
                if moved:
                    with torch.no_grad():
                        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters), parameters)
                for optimiser in made:
                    optimiser.zero_grad()
                scaler.scale(loop.loss(loop.model(inputs), targets)).backward()
                for optimiser in made:
                    scaler.step(optimiser)
                scaler.update()

    return loop


@pytest.mark.parametrize(
    "way",
    [{"optimisers": 2}, {"optimisers": 5}, {"moved": True}, {"scaled": True}, {"scaled": True, "fused": True}],
    ids=["two optimisers", "five", "other data", "a scaler", "a scaler and a fused optimiser"],
)
def test_each_gradient_is_corrected_once_however_it_is_stepped(way: dict[str, Any]) -> None:
    """With the same bits, but that a fused kernel rounds otherwise; without a correction it is another model."""
    wanted = after(by(stepping()), [CORRECTED])
    torch.testing.assert_close(after(by(stepping(**way)), [CORRECTED]), wanted, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after(by(stepping(**way)), [Phase("model", 2, SGD(0.05), 8)]), wanted, atol=1e-3)


def test_what_a_loop_leaves_in_the_model_is_found_before_the_start() -> None:
    def adding(loop: Any) -> None:
        fit(loop)
        loop.model.extra = nn.Linear(2, 2)

    def hooking(loop: Any) -> None:
        fit(loop)
        loop.model.register_forward_hook(lambda *_: None)

    def halving(loop: Any) -> None:
        fit(loop)
        loop.model.head.half()

    for left in (adding, hooking, halving):
        with pytest.raises(InputError, match=r"has left `loop.model.*` with other layers, tensors, types or hooks"):
            try_training(batch_norm_model(), samples(2), (PHASE,), by(left), 3)


def test_a_patched_forward_is_put_back() -> None:
    """As Accelerate leaves one with mixed precision."""

    def patching(loop: Any) -> None:
        own = loop.model.forward
        loop.model.forward = lambda x: own(x) + 1
        fit(loop)

    made, before = model(), model()(samples().x)
    trainer(made, by(patching)).train(Phase("model", 1, SGD(1e-9), 8), 1)
    made.train(False)
    torch.testing.assert_close(made(samples().x), before)
    assert "forward" not in vars(made.module)


def test_epochs_may_be_read_beside_each_other() -> None:
    seen = []

    def nested(loop: Any) -> None:
        seen.extend(
            len(one.positions) + sum(len(other.positions) for other in loop.batches()) for one in loop.batches()
        )
        seen.extend(zip(loop.batches(), loop.batches(), strict=True))
        fit(loop)

    trainer(batch_norm_model(), by(nested)).train(PHASE, 1)
    assert sum(seen[:5]) == N + 5 * N
    assert len(seen) == 10


def test_a_loop_may_choose_the_size_of_its_batches() -> None:
    seen = []

    def choosing(loop: Any) -> None:
        seen.extend([len(batch.positions) for batch in loop.batches(size)] for size in (30, None))
        fit(loop)

    trainer(model(), by(choosing)).train(PHASE, 1)
    assert seen == [[30, 7], [8, 8, 8, 8, 5]]


def test_what_is_kept_belongs_to_its_phase_and_is_dropped_with_it() -> None:
    steps = []

    def keeping(loop: Any) -> None:
        optimiser = torch.optim.Adam(loop.model.parameters(), lr=0.01)
        loop.keep(optimiser)
        steps.append(int(next(iter(optimiser.state.values()))["step"]) if optimiser.state else 0)
        loop.loss(loop.model(loop.data[0][0][None]), loop.data[0][1][None]).backward()
        optimiser.step()

    one, warm, main = (
        trainer(batch_norm_model(), by(keeping)),
        *(Phase("head", 1, SGD(0.1), 8, keep=k) for k in ("w", "m")),
    )
    for phase in (warm, warm, main, main):
        one.train(phase, 1)
    assert steps == [0, 1, 0, 1]
    one.drop("w")
    for phase in (warm, main):
        one.train(phase, 1)
    assert steps[4:] == [0, 2]

    def late(loop: Any) -> None:
        optimiser = torch.optim.Adam(loop.model.parameters(), lr=0.01)
        loop.loss(loop.model(loop.data[0][0][None]), loop.data[0][1][None]).backward()
        optimiser.step()
        loop.keep(optimiser)

    with pytest.raises(UserCodeError, match="takes an optimiser before its first step"):
        trainer(batch_norm_model(), by(late)).train(warm, 1)


def test_a_model_that_was_not_finite_before_is_not_the_loop_s_doing() -> None:
    made = batch_norm_model()
    made.extractor[0] = torch.nan
    with pytest.raises(DivergedError, match="the model was not finite when training began"):
        trainer(made, by(lambda loop: loop.optimiser() and None)).train(Phase("extractor", 1, SGD(0.1), 8), 1)
    trainer(made, by(lambda loop: {"loss": 1.0})).train(Phase("head", 1, SGD(0.1), 8), 1)


def test_figures_have_names_that_reports_can_show() -> None:
    for wrong in ({"round": 9}, {"local_steps": 1}, {"": 1}, {"a\nb": 1}, {f"f{n}": n for n in range(65)}):
        with pytest.raises(UserCodeError, match="it gives"):
            trainer(batch_norm_model(), by(lambda loop, wrong=wrong: wrong)).train(PHASE, 1)
