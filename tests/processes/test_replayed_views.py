"""`views: replay` with real processes: a run that was healed is repeated, and nobody needs to be killed for it."""

import json
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from healing import await_view, begin, chain, end, healing, hurry, judge, kill
from real_peers import Build, SmallFederation, digests
from safetensors import safe_open
from torch import Tensor

from peer.views.view import View

pytestmark = pytest.mark.long


def trace(federation: SmallFederation, id: str) -> dict[str, dict[str, Tensor]]:
    """Everything in a peer's traces, by file."""
    found = dict[str, dict[str, Tensor]]()
    for path in sorted((federation.directory / id / "trace").glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found[path.name] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return found


def members(views: Sequence[View], round: int) -> tuple[str, ...]:
    """The members whose round counts; traces also hold what others played of it before it was void."""
    return next(view.members for view in reversed(views) if view.first <= round)


def results(federation: SmallFederation, *ids: str) -> dict[str, dict[str, Any]]:
    return {id: json.loads((federation.directory / id / "result.json").read_text()) for id in ids}


def test_a_healed_run_is_repeated_to_the_bit(federation: Build) -> None:
    """One came back with its directory, one without, and one not at all; a peer of the replay is killed on its way."""
    one = healing(federation, 5)
    begin(one)
    kill(one, "peer1")
    await_view(one, "peer0", ("peer0", "peer2", "peer3", "peer4"))
    one.start("peer1")
    back = await_view(one, "peer0", one.ids)
    one.await_event("peer1", "round", round=back["first"])
    kill(one, "peer3")
    shutil.rmtree(one.directory / "peer3")
    await_view(one, "peer0", ("peer0", "peer1", "peer2", "peer4"))
    one.start("peer3")
    one.await_event("peer0", "view", number=4)
    one.await_event("peer3", "round", round=one.events("peer0", "view")[-1]["first"])
    kill(one, "peer4")
    await_view(one, "peer0", ("peer0", "peer1", "peer2", "peer3"))
    remaining = ("peer0", "peer1", "peer2", "peer3")
    views = end(one, *remaining, wiped=["peer3"])

    again = healing(federation, 5, views="replay", recording=str(one.directory))
    hurry(again)
    again.start(*again.ids)
    again.await_event("peer2", "round", 40, round=4)
    kill(again, "peer2")
    again.start("peer2")
    codes = again.wait()
    assert codes == dict.fromkeys(again.ids, 0), again.account()
    assert judge(again, remaining) == views == chain(again, "peer0")
    assert digests(results(again, *remaining)) == digests(results(one, *remaining))
    assert not (again.directory / "peer4" / "result.json").exists()
    for id in one.ids:
        recorded, replayed = trace(one, id), trace(again, id)
        counting = {name for name in recorded if id in members(views, int(name[6:10]))}
        assert counting <= replayed.keys()
        for name in counting:
            for key, vector in recorded[name].items():
                assert torch.equal(vector, replayed[name][key]), (id, name, key)
