"""A neighbour that wrongly says a frame is not declared: its sender stops, says so, and goes on when started again."""

import json
from pathlib import Path

import pytest

from peer.errors import FailedError
from peer.network.streams.receiver import Receiver
from peer.network.wire.frames import decode
from peer.network.wire.manifest import NotDeclaredError
from peer.runtime.in_process import run_in_process
from peer.spec.federation import Spec
from peer.spec.peer import load_spec


def spec(directory: Path) -> Spec:
    directory.mkdir()
    path = directory / "federation.yaml"
    protocol = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
    path.write_text(json.dumps({"rounds": 4, "protocol": protocol, "data": {"name": "digits", "limit": 200}}))
    return load_spec(path, peers=3)


async def models(spec: Spec, out: Path) -> dict[str, str]:
    return {id: one.setup.model.sha256() for id, one in (await run_in_process(spec, out)).items()}


async def test_one_lie_costs_one_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, lied = Receiver.take, list[str]()

    async def lie_once(receiver: Receiver, sender: str, data: bytes) -> None:
        if (receiver._identity.id, sender, decode(data).key.round) == ("peer1", "peer0", 3) and not lied:
            lied.append(sender)
            raise NotDeclaredError("`extractor` is not declared to travel in round 3")
        await take(receiver, sender, data)

    monkeypatch.setattr(Receiver, "take", lie_once)
    expected = spec(tmp_path / "run")
    with pytest.raises(ExceptionGroup) as stopped:
        await models(expected, tmp_path / "run")
    [error] = stopped.value.exceptions
    assert isinstance(error, FailedError)
    assert str(error).startswith("peer1 refused: `extractor` is not declared to travel in round 3; ")
    assert "either this peer's code" in str(error)
    assert "or peer1 runs other code or does not tell the truth" in str(error)
    assert str(error).endswith("then start this peer again")
    again = await models(expected, tmp_path / "run")
    assert again == await models(spec(tmp_path / "honest"), tmp_path / "honest")
