"""A neighbour that wrongly says a frame is not declared: its sender says so, waits, and goes on; the same bits."""

import json
from pathlib import Path

import pytest

from peer.errors import FailedError
from peer.network.limits import Timeouts
from peer.network.streams.link import Receiver
from peer.network.wire.frames import decode
from peer.network.wire.manifest import NotDeclaredError
from peer.runtime.in_process import run_in_process
from peer.runtime.lifecycle import RuntimeLimits
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

LIE = "`extractor` is not declared to travel in round 3"
QUICK = RuntimeLimits(timeouts=Timeouts(heartbeat_interval=0.05, retry_refused=(0.05, 0.2), stable_after=0.5))


def spec(directory: Path, **more: object) -> Spec:
    directory.mkdir()
    path = directory / "federation.yaml"
    protocol = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
    content = {"rounds": 4, "protocol": protocol, "data": {"name": "digits", "limit": 200}, **more}
    path.write_text(json.dumps(content))
    return load_spec(path, peers=3)


async def models(spec: Spec, out: Path) -> dict[str, str]:
    return {id: one.setup.model.sha256() for id, one in (await run_in_process(spec, out, QUICK)).items()}


def lying(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """peer1 says so many times that what peer0 sends in round 3 is not declared; the lies so far."""
    receive, lies = Receiver.receive_frame, list[str]()

    async def lie(receiver: Receiver, sender: str, data: bytes) -> bool:
        about = (receiver._identity.id, sender, decode(data).key.round)
        if about == ("peer1", "peer0", 3) and len(lies) < times:
            lies.append(sender)
            raise NotDeclaredError(LIE)
        return await receive(receiver, sender, data)

    monkeypatch.setattr(Receiver, "receive_frame", lie)
    return lies


def links(out: Path, peer: str = "peer0") -> list[dict[str, str]]:
    """What that peer told of its link to peer1."""
    events = [json.loads(line) for line in (out / peer / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "link" and event["neighbour"] == "peer1"]


async def test_a_lie_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lies, run = lying(monkeypatch, 6), spec(tmp_path / "run")
    ended = await models(run, tmp_path / "run")
    assert len(lies) == 6
    [told] = [event for event in links(tmp_path / "run") if event["state"] == "suspected"]
    assert told["reason"] == (f"it does not take what is sent to it: refused: {LIE}; compare its code with this peer's")
    assert ended == await models(spec(tmp_path / "honest"), tmp_path / "honest")


async def test_who_takes_nothing_for_too_long_counts_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, 10**6)
    run = spec(tmp_path / "run", patience=2, on_loss="stop")
    with pytest.raises(ExceptionGroup) as stopped:
        await models(run, tmp_path / "run")
    said = [str(error) for error in stopped.value.exceptions if isinstance(error, FailedError)]
    assert len(said) == len(stopped.value.exceptions)
    assert any(
        f"stopped because of peer1 at {run.ring[1].address} (it does not take" in one and LIE in one for one in said
    )
