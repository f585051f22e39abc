"""`clip_gradient`: steps against plain torch, whose gradient is scaled by hand."""

import pytest
import torch
from small_models import batch_norm_model, model, samples
from torch import Tensor
from torch.nn import functional

from peer.learning.model.layout import ModelPart
from peer.learning.randomness import torch_generator
from peer.learning.training.optimiser import SGD, Adam
from peer.learning.training.phase import Phase, Training
from peer.learning.training.trainer import Trainer

LIMIT = 0.05


@pytest.mark.parametrize("part", ["model", "extractor", "head"])
def test_a_longer_gradient_is_scaled_down_and_a_shorter_one_stays(part: ModelPart) -> None:
    trained, data, plain = model(), samples(), model()
    Trainer(trained, data, 1, "peer0", Training(clip_gradient=LIMIT)).train(Phase(part, 2, SGD(0.5), batch_size=8), 0)
    generator, norms = torch_generator(1, "peer0", 0, "order 0"), []
    names = [entry.name for entry in plain.layout if part in ("model", entry.part)]
    for _ in range(2):
        for batch in torch.randperm(len(data), generator=generator).split(8):
            parameters = [plain.module.get_parameter(name).requires_grad_() for name in names]
            loss = functional.cross_entropy(plain.module(data.x[batch]), data.y[batch])
            gradients = torch.autograd.grad(loss, parameters)
            norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
            scale = min(1.0, LIMIT / norms[-1])
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(0.5 * scale * gradient)
    torch.testing.assert_close(trained.vector, plain.vector, rtol=1e-5, atol=1e-6)
    assert max(norms) > LIMIT


def test_it_is_done_before_the_protocol_s_correction() -> None:
    seen: list[float] = []

    def hook(parameters: Tensor, gradient: Tensor) -> None:
        seen.append(float(gradient.norm()))
        gradient.add_(10.0)

    made = model()
    before = made.vector.clone()
    Trainer(made, samples(), 1, "peer0", Training(clip_gradient=LIMIT)).train(
        Phase("model", 1, SGD(0.01), gradient_hook=hook), 0
    )
    assert 0 < max(seen) <= LIMIT * (1 + 1e-6)
    assert float((made.vector - before).abs().max()) > 0.09, "the correction is whole"


def test_not_given_or_never_reached_the_bits_are_the_same() -> None:
    ends = []
    for limit in (None, 1e6):
        made = batch_norm_model()
        Trainer(made, samples(), 1, "peer0", Training(clip_gradient=limit)).train(
            Phase("model", 3, Adam(0.01), batch_size=8), 0
        )
        ends.append(made.vector.clone())
    assert torch.equal(*ends)


def test_running_statistics_are_no_part_of_the_gradient() -> None:
    ends = []
    for limit in (None, LIMIT):
        made = batch_norm_model()
        Trainer(made, samples(), 1, "peer0", Training(clip_gradient=limit)).train(
            Phase("model", 1, SGD(0.0), batch_size=8), 0
        )
        ends.append(made.vector.clone())
    assert torch.equal(*ends)


def test_a_gradient_of_zero_stays_zero() -> None:
    made = model()
    phase = Phase("model", 1, SGD(0.1), loss=lambda logits, labels, positions: logits.sum() * 0)
    before = made.vector.clone()
    Trainer(made, samples(), 1, "peer0", Training(clip_gradient=LIMIT)).train(phase, 0)
    assert torch.equal(made.vector, before)
