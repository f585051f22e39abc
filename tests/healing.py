"""Federations of real peers whose members change, and what must hold of them whatever has happened."""

import ast
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from real_peers import Build, SmallFederation
from safetensors import safe_open
from torch import Tensor

from peer.protocols.blocks.vectors import blend
from peer.protocols.fibfl import ALPHA, BETA
from peer.spec.recordings import VIEWS
from peer.views.decision import Memory
from peer.views.statements import read
from peer.views.view import View

ABSENCE = 6
"""Seconds: longer than a busy machine lets a process stand."""
SPEC: dict[str, Any] = {
    "on_loss": "bypass",
    "absence": ABSENCE,
    "model": "tiny:model",
    "data": "tiny:clouds",
    "evaluate_every": 1000,
    "trace": True,
    "code": str(Path(__file__).parent / "faults"),
}
GAMMA, PAUSE, HURRY = 0.5, 0.25, "hurry"


def healing(build: Build, peers: int = 4, rounds: int = 40, **spec: Any) -> SmallFederation:
    """Small ones, whose rounds take `PAUSE` seconds until `hurry` is called."""
    protocol = {"name": "tiny:Paced", "head_epochs": 1, "extractor_epochs": 1, "gamma": GAMMA, "pause": PAUSE}
    made = build(protocol, peers, rounds=rounds, **SPEC | spec)
    made.env = {id: {"HURRY": str(made.directory / HURRY)} for id in made.ids}
    return made


def hurry(federation: SmallFederation) -> None:
    """What was to be seen has been seen."""
    (federation.directory / HURRY).touch()


def begin(federation: SmallFederation, *ids: str) -> None:
    """Start these peers, or all of them, and wait until they are under way."""
    federation.start(*ids)
    for id in ids or federation.ids:
        federation.await_event(id, "round", 40, round=3)


def kill(federation: SmallFederation, *ids: str) -> None:
    """At once; what they were started for is forgotten."""
    for id in ids:
        federation.peers[id].signal(signal.SIGKILL)
    for id in ids:
        federation.peers.pop(id).wait(10)


def end(federation: SmallFederation, *ids: str, wiped: Sequence[str] = ()) -> tuple[View, ...]:
    """The views of these peers, or of all, when they have come to the end. `wiped`: who has lost its directory."""
    hurry(federation)
    codes = federation.wait(120)
    assert codes == dict.fromkeys(ids or federation.ids, 0), federation.account()
    return judge(federation, ids or federation.ids, wiped)


def chain(federation: SmallFederation, id: str) -> tuple[View, ...]:
    """The views that a peer knows: that of the spec alone before it has written any down."""
    path = federation.directory / id / VIEWS
    if not path.exists():
        return (View(0, federation.ids, 0),)
    memory = read(Memory, path.read_bytes())
    return (View(0, federation.ids, 0), *(one.view for one in memory.decisions))


def await_view(federation: SmallFederation, id: str, members: Sequence[str], seconds: float = 60) -> dict[str, Any]:
    """The first event of that peer that tells of a view with these members."""
    return federation.await_event(id, "view", seconds, members=[*members])


def judge(federation: SmallFederation, ended: Sequence[str], wiped: Sequence[str] = ()) -> tuple[View, ...]:
    """The views, on which all who came to the end must agree.

    Every round must have been played by exactly the members of its view, each from the state in which it was, with
    what its neighbours there sent in this view, and nothing else. `wiped`: who has lost its directory, traces and all.
    """
    views = {id: chain(federation, id) for id in ended}
    known = max(views.values(), key=len)
    assert all(one == known for one in views.values()), views
    assert {*ended} == {*known[-1].members}, known[-1]
    taken_in = {id: view.first for view in known for id, brought in view.entrants if brought < 0}
    for round in range(1, federation.spec.rounds + 1):
        _check_round(federation, known, round, [id for id in ended if id not in wiped or round >= taken_in[id]])
    return known


def _check_round(federation: SmallFederation, views: Sequence[View], round: int, known: Sequence[str]) -> None:
    """Recomputed from the traces of those whose traces are known, where they were members."""
    view = next(view for view in reversed(views) if view.first <= round)
    traces = {id: _trace(federation, id, round) for id in view.members if id in known}
    entrants = dict(view.entrants) if view.first == round else {}
    for id, (facts, vectors) in traces.items():
        assert (facts["view"], json.loads(facts["ring"])) == (view.number, [*view.members]), (id, round, facts)
        brought = entrants.get(id, round - 1)
        if brought > 0:
            _, earlier = _trace(federation, id, brought)
            assert torch.equal(vectors["start"], earlier["after"]), (id, round, brought)
        at = view.members.index(id)
        left, right = view.members[at - 1], view.members[(at + 1) % len(view.members)]
        if left in traces and right in traces:
            expected = vectors["before"].clone()
            shares = [
                ((1 - GAMMA) * ALPHA, traces[left][1]["before"]),
                ((1 - GAMMA) * BETA, traces[right][1]["before"]),
            ]
            blend(expected, GAMMA, shares)
            assert torch.equal(expected, vectors["after"]), (id, round, view)


def _trace(federation: SmallFederation, id: str, round: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Facts and vectors of a round."""
    path = federation.directory / id / "trace" / f"round-{round:04d}.safetensors"
    with safe_open(path, "pt") as file:
        facts = {key: value if key == "ring" else ast.literal_eval(value) for key, value in file.metadata().items()}
        return facts, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
