"""Files that are damaged, and not only the newest: the same bits, or a sentence that says what is lost."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from faults.scenarios import SCENARIOS, specification
from faults.simulation import Kill, simulate, undisturbed
from peer.errors import FailedError
from peer.runtime.checkpoints import Checkpointer, Checkpoints
from peer.runtime.in_process import run_in_process
from peer.spec.federation import Spec
from peer.telemetry.results import history

END = 5
"""The rounds of the scenario `fibfl`; the runs here are stopped two rounds before and taken up again."""


def run(spec: Spec, out: Path) -> dict[str, str]:
    runtimes = asyncio.run(run_in_process(spec, out))
    return {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()}


@pytest.fixture
def stopped(tmp_path: Path) -> Checkpoints:
    """The checkpoints of peer1 in a federation that has done three rounds of five.

    Nobody announces the last round before all have its messages in their checkpoints: a neighbour that was late would
    have dropped peer1's.
    """
    announce, all_saved = Checkpointer.verify_last, asyncio.Barrier(len(SCENARIOS["fibfl"].ids))

    async def announce_together(checkpointer: Checkpointer) -> None:
        await all_saved.wait()
        await announce(checkpointer)

    with patch.object(Checkpointer, "verify_last", announce_together):
        run(specification("fibfl").model_copy(update={"rounds": END - 2}), tmp_path)
    return Checkpoints(tmp_path / "peer1" / "checkpoint")


def go_on(out: Path) -> None:
    """To the end, in the bits of the run that was never stopped."""
    assert run(specification("fibfl"), out) == undisturbed("fibfl").digests
    assert all(len(history(out / id)) == END for id in SCENARIOS["fibfl"].ids)


def fails(out: Path, message: str) -> None:
    """With that sentence, and nothing deleted that a copy could mend."""
    checkpoints = out / "peer1" / "checkpoint"
    before = sorted(path.name for path in checkpoints.iterdir())
    with pytest.RaisesGroup(pytest.RaisesExc(FailedError, match=message), allow_unwrapped=True):
        run(specification("fibfl"), out)
    assert sorted(path.name for path in checkpoints.iterdir()) == before


def break_in_the_middle(path: Path) -> None:
    content = path.read_bytes()
    # Of a seal a checksum: the last digit of a number could be another one and mean the same.
    half = content.index(b'"messages": "') + 20 if path.suffix == ".json" else len(content) // 2
    path.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])


def tell(checkpoints: Checkpoints, durable: int) -> None:
    """Write the newest two again: with messages of both, and with that round as what the others have on disk."""
    (snapshot, messages), earlier = checkpoints.load(3), checkpoints.load(2)[0]
    network = {**snapshot.facts["network"], "durable": dict.fromkeys(SCENARIOS["fibfl"].ids, durable)}
    facts: dict[str, Any] = {**snapshot.facts, "network": network}
    checkpoints.save(earlier, messages[3])
    checkpoints.save(replace(snapshot, facts=facts), messages[3])


def said(out: Path) -> str:
    return (out / "peer1" / "events.jsonl").read_text()


@pytest.mark.parametrize("name", ["round-0003.safetensors", "messages-0003.safetensors", "round-0003.json"])
def test_the_newest(stopped: Checkpoints, tmp_path: Path, name: str) -> None:
    """It was announced at the end of the shorter run, but the neighbours' messages of its round are on their disks."""
    break_in_the_middle(stopped.directory / name)
    go_on(tmp_path)
    assert '"event": "damaged", "round": 3' in said(tmp_path)


@pytest.mark.parametrize("name", ["round-0002.safetensors", "round-0002.json"])
def test_an_older_state_costs_nothing(stopped: Checkpoints, tmp_path: Path, name: str) -> None:
    break_in_the_middle(stopped.directory / name)
    go_on(tmp_path)
    assert '"event": "damaged", "round": 2' in said(tmp_path)


def test_older_messages_that_nobody_needs_cost_nothing(stopped: Checkpoints, tmp_path: Path) -> None:
    tell(stopped, durable=2)
    break_in_the_middle(stopped.directory / "messages-0002.safetensors")
    go_on(tmp_path)
    assert "every neighbour has them" in said(tmp_path)


def change_a_receiver(path: Path) -> None:
    """Outside of all frames, and so of their checksums."""
    content = path.read_bytes()
    assert b"peer2" in content
    path.write_bytes(content.replace(b"peer2", b"peer0", 1))


@pytest.mark.parametrize("harm", [break_in_the_middle, change_a_receiver])
def test_older_messages_that_may_be_asked_for_end_the_run(
    harm: Callable[[Path], None], stopped: Checkpoints, tmp_path: Path
) -> None:
    tell(stopped, durable=1)
    harm(stopped.directory / "messages-0002.safetensors")
    fails(tmp_path, "the messages of round 2 are damaged .* may still ask for them, so this")


def test_two_damaged_checkpoints_end_the_run(stopped: Checkpoints, tmp_path: Path) -> None:
    for round in (2, 3):
        break_in_the_middle(stopped.directory / f"round-000{round}.safetensors")
    fails(tmp_path, "no checkpoint of round 2 or later is whole, so this peer cannot go on; put a copy of")


def test_files_that_are_no_checkpoints(stopped: Checkpoints, tmp_path: Path) -> None:
    """Strangers' files stay and are not read; what a killed write left goes."""
    strangers = ["round-abc.json", "round-0003.json~", "round-0003 (copy).json", "messages-x.safetensors", "notes.txt"]
    strangers += ["round-00003.json", "round-9.json", "round-.safetensors", ".notes.part"]
    left = [".round-0004.safetensors.part", ".messages-0004.safetensors.part", ".round-0004.json.part"]
    for name in (*strangers, *left, "round-0001.safetensors"):
        (stopped.directory / name).write_bytes(b"{")
    (stopped.directory / "round-0007.json").mkdir()
    go_on(tmp_path)
    names = {path.name for path in stopped.directory.iterdir()}
    assert names >= set(strangers)
    assert not names & {*left, "round-0001.safetensors"}


@pytest.mark.parametrize(
    ("kind", "every"),
    [("round", 120), *(pytest.param(kind, 60, marks=pytest.mark.long) for kind in ("round", "messages"))],
)
def test_an_older_file_at_any_moment(kind: str, every: int) -> None:
    """Whichever of its older files is damaged when peer1 starts again: never other bits, never a wait for ever."""

    broken = list[Path]()

    def damage(directory: Path, random: Random) -> int | None:
        if older := sorted(directory.glob(f"{kind}-*.safetensors"))[:-1]:
            broken.append(random.choice(older))
            break_in_the_middle(broken[-1])
        return None

    ends = set()
    with patch("faults.simulation.delete_a_byte", damage):
        for count in range(3, undisturbed("fibfl").steps["peer1"]["callback"], every):
            outcome = simulate("fibfl", count, [Kill("peer1", "callback", count, damage=True)])
            sentence = any(fault.startswith("peer1 failed: FailedError") for fault in outcome.faults)
            ends.add(sentence)
            if sentence:
                assert kind == "messages", "an older state is never needed"
            else:
                assert not outcome.faults, (count, outcome)
                assert outcome.digests == undisturbed("fibfl").digests, (count, outcome)
    assert broken
    assert False in ends
