"""User code with generators of its own: seeded like the process's, and told where that is impossible."""

import asyncio
import copy
import json
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from launcher.commands.check import ResourceEstimate, heading
from launcher.plan import plan
from peer.learning.data.batch_loader import BatchLoader
from peer.learning.data.batch_reader import BatchReader, BatchRequest, DataPart
from peer.learning.randomness import draw_from, generators_in, sample_streams
from peer.learning.tasks import Classification
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec
from peer.telemetry.events import UNREPEATABLE

GLOBAL = np.random.default_rng(1)
KINDS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.random.default_rng(5),
    "numpy philox": lambda: np.random.Generator(np.random.Philox(5)),
    "numpy's older": lambda: np.random.RandomState(5),
    "torch": lambda: torch.Generator().manual_seed(5),
    "python": lambda: random.Random(5),
}


def number(generator: Any) -> float:
    return float(torch.rand(1, generator=generator)) if isinstance(generator, torch.Generator) else generator.random()


class Held:
    """In a slot, as in `R` of a transform."""

    __slots__ = ("R",)

    def __init__(self, generator: Any) -> None:
        self.R = generator

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + number(self.R)


class Drawing(Dataset[Any]):
    """Four samples, each with what `draw` gives."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor], samples: int = 4) -> None:
        self.steps, self.samples = {"all": [draw]}, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return self.steps["all"][0](torch.full((3,), float(at))), at % 2


def by_global(x: torch.Tensor) -> torch.Tensor:
    return x + deeper()


def deeper() -> float:
    return float(GLOBAL.random())


COUNTED = count()


def counted(x: torch.Tensor) -> torch.Tensor:
    """What no seed reaches."""
    return x + next(COUNTED)


def in_closure(generator: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x + number(generator)


def plus(x: torch.Tensor, generator: Any) -> torch.Tensor:
    return x + number(generator)


class ByClass:
    generator = random.Random(3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.generator.random()


PLACES: dict[str, Callable[[], Any]] = {
    **{f"a slot: {name}": (lambda kind=kind: Held(kind())) for name, kind in KINDS.items()},
    "a closure": lambda: in_closure(np.random.default_rng(1)),
    "a bound argument": lambda: partial(plus, generator=random.Random(1)),
    "a bound method": lambda: Held(random.Random(1)).__call__,
    "a global name, two functions deep": lambda: by_global,
    "a class": ByClass,
}


def reader(dataset: Dataset[Any]) -> BatchReader:
    return BatchReader("data", {"train": DataPart(dataset)}, Classification())


def request(seed: int, *rows: int) -> BatchRequest:
    return BatchRequest("train", np.array(rows), np.array(rows), seed, drawn=True)


@pytest.mark.parametrize("place", PLACES)
def test_a_sample_is_the_same_from_the_same_seed_wherever_its_generator_is(place: str) -> None:
    reading = reader(Subset(Drawing(PLACES[place]()), [0, 1, 2, 3]))
    first = reading.read(request(7, 0, 1, 2))
    reading.read(request(8, 3))
    again, other = reading.read(request(7, 0, 1, 2)), reading.read(request(8, 0, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(first.inputs[1:2], reading.read(request(7, 1)).inputs), "whatever was read before"
    assert BatchLoader(reading).repeats


def test_generators_get_streams_of_their_own() -> None:
    one, two = np.random.default_rng(1), np.random.default_rng(1)
    with sample_streams():
        draw_from(3, [one, two])
    assert one.random() != two.random()


def test_a_copy_for_a_worker_finds_its_generators_anew() -> None:
    """Not every generator can be sent (real workers: tests/processes/test_same_bits.py)."""
    reading = reader(Drawing(Held(np.random.RandomState(5))))
    here = reading.read(request(7, 0, 1))
    sent = copy.deepcopy(reading)
    assert vars(sent).keys() < vars(reading).keys()
    assert torch.equal(sent.read(request(7, 0, 1)).inputs, here.inputs)


def test_what_refers_to_itself_is_looked_through_once() -> None:
    generator, ring = random.Random(1), list[Any]()
    ring += [ring, {"again": ring, "it": generator}, generator]
    assert generators_in(ring) == [generator]
    assert generators_in(None, "text", 3, np.zeros(2)) == []


def test_a_collate_that_draws_repeats(tmp_path: Path) -> None:
    def crops(samples: list[Any]) -> Any:
        return torch.stack([x for x, _ in samples]) + np.random.random(), torch.tensor([y for _, y in samples])

    reading = BatchReader("data", {"train": DataPart(Drawing(lambda x: x))}, Classification(), collate=crops)
    first, other = (reading.read(request(seed, 0, 1)).inputs for seed in (7, 8))
    assert torch.equal(first, reading.read(request(7, 0, 1)).inputs)
    assert not torch.equal(first, other)


def spec(tmp_path: Path, module: str, draw: str) -> Any:
    """A federation whose data set draws so."""
    (tmp_path / f"{module}.py").write_text(
        "from own_generators import Drawing, Held, counted\n"
        "import numpy as np\n"
        f"def data():\n    return Drawing({draw}, 60)\n"
    )
    (tmp_path / "own_generators.py").write_text(Path(__file__).read_text())
    path = tmp_path / "federation.yaml"
    content = {"protocol": {"name": "fedavg", "epochs": 1}, "rounds": 2, "data": {"name": f"{module}:data"}}
    path.write_text(json.dumps(content))
    return load_spec(path, peers=3)


def test_runs_have_the_same_bits(tmp_path: Path) -> None:
    made = spec(tmp_path, "drawing", "Held(np.random.RandomState())")
    runs = [asyncio.run(run_in_process(made, tmp_path / name)) for name in ("one", "two")]
    first, second = ({id: run.setup.model.sha256() for id, run in runtimes.items()} for runtimes in runs)
    assert first == second
    assert plan(made).unrepeatable == []
    assert '"unrepeatable"' not in (tmp_path / "one" / "peer0" / "events.jsonl").read_text()


def test_what_no_seed_reaches_is_told_by_check_and_by_each_peer(tmp_path: Path) -> None:
    made = spec(tmp_path, "counting_on", "counted")
    found = plan(made)
    assert found.unrepeatable == ["counting_on:data"]
    assert UNREPEATABLE.format(data="counting_on:data") in heading(
        ResourceEstimate(found, {id: [0, 1] for id in made.ids})
    )
    asyncio.run(run_in_process(made, tmp_path / "run"))
    events = [json.loads(line) for line in (tmp_path / "run" / "peer1" / "events.jsonl").read_text().splitlines()]
    assert [one["data"] for one in events if one["event"] == "unrepeatable"] == ["counting_on:data"]
