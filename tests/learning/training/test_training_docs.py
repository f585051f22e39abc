"""The steps of docs/training.md and its example: what they are for, and the same bits after a kill."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_loops import LR, SIZE, small, trained
from small_models import samples
from torch.nn import functional

from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import PROTOCOL_DEFAULTS, Phase
from peer.learning.training.trainer import Trainer
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "training.md").read_text("utf-8")
CODE = (ROOT / "examples" / "my_steps.py").read_text("utf-8")
(YAML,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)


def steps() -> Any:
    found: dict[str, Any] = {}
    exec(CODE, found)
    return SimpleNamespace(**found)


def test_the_example_has_the_page_s_code() -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert shown in CODE


@pytest.mark.parametrize("name", ["mixup", "sharpness_aware"])
def test_they_learn_and_go_on_to_the_bit(name: str) -> None:
    phase = Phase("model", 1, SGD(0.1), SIZE, keep="model", step=getattr(steps(), name))
    whole = trained(small(), PROTOCOL_DEFAULTS, phase, rounds=12)
    made = small()
    before = functional.cross_entropy(made(samples().x), samples().y).item()
    for round in range(1, 13):
        Trainer(made, samples(), 1, "peer0").train(phase, round)
    assert torch.equal(made.vector, whole)
    assert functional.cross_entropy(made(samples().x), samples().y).item() < 0.9 * before


def test_sharpness_aware_takes_the_gradient_uphill() -> None:
    made, plain, data = small(), small(), samples(SIZE)
    Trainer(made, data, 1, "peer0").train(Phase("model", 1, SGD(LR), SIZE, step=steps().sharpness_aware), 1)
    parameters = [*plain.module.parameters()]
    order = torch.cat([*Trainer(small(), data, 1, "peer0").batches(SIZE, 1)])
    x, y = data.x[order], data.y[order]
    first = torch.autograd.grad(functional.cross_entropy(plain(x), y), parameters)
    norm = torch.cat([g.flatten() for g in first]).norm()
    with torch.no_grad():
        for p, g in zip(parameters, first, strict=True):
            p.add_(g * 0.05 / norm)
    second = torch.autograd.grad(functional.cross_entropy(plain(x), y), parameters)
    with torch.no_grad():
        for p, g, h in zip(parameters, first, second, strict=True):
            p.sub_(g * 0.05 / norm).sub_(h, alpha=LR)
    torch.testing.assert_close(made.vector, plain.vector, rtol=1e-5, atol=1e-6)


def test_the_page_s_settings_run(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text(YAML)
    (tmp_path / "my_steps.py").write_text(CODE)
    few = ["rounds=1", "data.limit=90", "training.accumulate=1", "training.step=my_steps:mixup"]
    spec = load_spec(tmp_path / "federation.yaml", peers=2, overrides=few)
    first, second = asyncio.run(run_in_process(spec, tmp_path)).values()
    assert first.setup.model.sha256() == second.setup.model.sha256()
