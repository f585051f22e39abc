"""Protocols of a user's own that say something else of their vectors than is true: what the proof then says."""

from pathlib import Path
from typing import Any

import pytest
from federations import federate

from launcher.reports.summary import TimeSpent, summarise
from launcher.reports.summary_json import Privacy
from launcher.reports.summary_text import privacy_lines

HEAD = 4 * 90
"""Bytes of the tiny model's head."""
CODE = """
import torch
from peer import SGD, Phase, Protocol, Record, Share
class Base(Protocol):
    paper, min_peers = "none", 3
    def local(self): return (Phase("model", 1, SGD()),)
    def shares(self, rounds): return (Share("extractor", scalars=90), self.own())
    def own(self): return Share("mask")
    async def round(self, peer):
        await peer.train(*self.local())
        peer.state["mask"] = self.content(peer)
        received = await peer.exchange("mask")
        await peer.exchange("extractor")
    def content(self, peer): return peer.head.clone()
class Undeclared(Base): ...
class AsExtractor(Base):
    def own(self): return Share("mask", like="extractor")
    def content(self, peer): return torch.cat([peer.head, torch.zeros(len(peer.extractor) - len(peer.head))])
class Sealed(Base):
    def own(self): return Share("mask", bytes=True, size=4000)
    def content(self, peer): return torch.from_numpy(peer.head.numpy().view("uint8").copy())
class AsHead(Base):
    def own(self): return Share("mask", like="head")
class AsModel(Base):
    def own(self): return Share("mask", like="model")
    def content(self, peer): return peer.model.clone()
class InNumbers(Base):
    async def round(self, peer):
        numbers = {f"n{i}": float(x) for i, x in enumerate(peer.head)}
        await peer.exchange("extractor", **numbers)
class InRecords(Base):
    records = (Record("n", 90),)
    async def round(self, peer): await peer.gather("n", peer.head.double())
class Packed(Base):
    async def round(self, peer):
        bits = peer.head.numpy().tobytes()
        parts = [int.from_bytes(bits[i : i + 6], "little") for i in range(0, len(bits), 6)]
        await peer.exchange("extractor", **{f"n{i}": float(part) for i, part in enumerate(parts)})
class TwoNames(Base):
    def shares(self, rounds): return (Share("a", scalars=45), Share("b", scalars=45))
    async def round(self, peer):
        for name, part in (("a", peer.head[:45]), ("b", peer.head[45:])):
            peer.state[name] = torch.empty(0)
            await peer.exchange(name, **{f"n{i}": float(x) for i, x in enumerate(part)})
class HonestMean(Base):
    async def round(self, peer):
        for _ in range(60):
            await peer.weighted_mean("extractor", peer.samples)
class HonestGather(Base):
    records = (Record("q", "classes"),)
    async def round(self, peer):
        if peer.round == 1:
            await peer.gather("q", peer.proportions)
class InNotes(Base):
    async def round(self, peer):
        peer.note(head=peer.head.tolist())
        await peer.exchange("extractor")
class RandomPairs(InNotes):
    @property
    def graph(self): return "complete"
    async def round(self, peer):
        order = peer.shared_generator("pairs").permutation(peer.members).tolist()
        at = order.index(peer.id)
        partner = order[at ^ 1]
        await peer.exchange("extractor", to=[partner], of=[partner])
class Hub(InNotes):
    @property
    def graph(self): return "complete"
    def clients(self): return 2
    async def round(self, peer):
        centre, *others = peer.members
        clients = peer.shared_generator("clients").choice(others, self.clients(), replace=False).tolist()
        up = {"to": [centre] if peer.id in clients else (), "of": clients if peer.id == centre else ()}
        arrived = await peer.exchange("extractor", **up)
        if arrived:
            peer.extractor.copy_(sum(one.vector for one in arrived.values()) / len(arrived))
        down = {"to": clients if peer.id == centre else (), "of": [centre] if peer.id in clients else ()}
        for one in (await peer.exchange("extractor", **down)).values():
            peer.extractor.copy_(one.vector)
class HubWithAnEdge(Hub):
    def clients(self): return 3
    async def round(self, peer):
        await super().round(peer)
        first, second = peer.members[1:3]
        pair = {first: [second], second: [first]}.get(peer.id, [])
        await peer.exchange("extractor", to=pair, of=pair)
class RestlessRing(InNotes):
    reorders, records = True, (Record("order"),)
    async def round(self, peer):
        order = peer.shared_generator("ring").permutation(peer.members).tolist()
        await peer.reorder(tuple(order), 0.0, 0.0)
        await peer.exchange("extractor")
class Honest(Base):
    async def round(self, peer):
        await peer.train(*self.local())
        await peer.exchange("extractor", accuracy=await peer.accuracy())
"""


@pytest.mark.parametrize(
    ("name", "met", "head_bytes", "why"),
    [
        ("Undeclared", None, 0, "mask: the protocol does not declare what is in it"),
        ("AsExtractor", None, 0, "mask: declared like the extractor by code of your own, which nobody can check"),
        ("Sealed", None, 0, "mask: bytes that nobody but the protocol can read"),
        ("AsHead", False, 4 * 2 * 2 * HEAD, None),
        ("AsModel", False, 4 * 2 * 2 * HEAD, None),
        ("InNumbers", None, 0, "extractor: numbers that code of your own had a say in"),
        ("InRecords", None, 0, "n: numbers that code of your own had a say in"),
        ("Packed", None, 0, "extractor: numbers that code of your own had a say in"),
        ("HonestMean", True, 0, None),
        ("HonestGather", None, 0, "q: numbers that code of your own had a say in"),
        ("Honest", None, 0, "extractor: numbers that code of your own had a say in"),
        ("InNotes", None, 0, "head: noted by code of your own, and so in events and results"),
    ],
)
def test_the_proof_is_not_fooled(
    name: str, met: bool | None, head_bytes: int, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lies.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    run = federate(tmp_path / "run", {"name": f"lies:{name}"}, 4, trace=False)
    spec = run.runtimes["peer0"].setup.spec
    proof: dict[str, Any] = summarise(spec, run.out, TimeSpent(1.0, 0)).privacy
    assert proof["violations"] == []
    assert proof["head_bytes_sent"] == head_bytes
    assert proof["definitions"]["3.1"] is met
    assert [f"{one['vector']}: {one['why']}" for one in proof["on_trust"]] == ([why] if why else [])
    said = "\n".join(privacy_lines(proof))
    assert ("3.1 can neither be proven nor denied" in said) == (met is None)
    if why:
        assert why.split(": ")[1] in said


def test_numbers_under_several_names_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    run = federate(tmp_path / "run", {"name": "lies:TwoNames"}, 4, trace=False)
    proof = summarise(run.runtimes["peer0"].setup.spec, run.out, TimeSpent(1.0, 0)).privacy
    assert proof["definitions"]["3.1"] is None
    assert [one["vector"] for one in proof["on_trust"]] == ["a", "b"]


def proof_of(directory: Path, protocol: str, rounds: int, **spec: Any) -> Privacy:
    run = federate(directory / "run", {"name": protocol}, 4, rounds=rounds, trace=False, **spec)
    return summarise(run.runtimes["peer0"].setup.spec, run.out, TimeSpent(1.0, 0)).privacy


def test_another_partner_each_round_is_counted_over_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    proof = proof_of(tmp_path, "lies:RandomPairs", 8)
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": True, "3.2": True, "3.3": False}
    assert proof["counted"]["3.3"] == (
        "peer0 exchanged with 3 others (peer1, peer2 and peer3) in rounds 1 to 8; 12 directed edges"
    )
    assert f"  3.3 not met: {proof['counted']['3.3']}" in privacy_lines(proof)


def test_a_hub_is_one_over_several_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    proof = proof_of(tmp_path, "lies:Hub", 8)
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": True, "3.2": False, "3.3": False}
    assert proof["counted"]["3.2"] == (
        "peer0 was an end of all 6 directed edges in rounds 1 to 8, so it stood between the 3 others"
    )


def test_own_code_beside_a_built_in_protocol_has_a_say_in_its_numbers(tmp_path: Path) -> None:
    proof = proof_of(tmp_path, "fibfl+", 2, model={"name": "federations:tiny"})
    assert [(one["vector"], one["bytes"]) for one in proof["on_trust"]] == [("extractor", 4 * 2 * 8)]
    assert proof["definitions"]["3.1"] is None
    assert "`federations:tiny`" in proof["counted"]["3.1"]
    proof = proof_of(tmp_path / "known", "fibfl+", 2, model={"name": "mlp"})
    assert (proof["on_trust"], proof["definitions"]["3.1"]) == ([], True)


def test_the_figures_of_an_own_task_leave_in_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "targets.py").write_text(
        "from peer.learning.tasks import Classification\nclass Named(Classification):\n    name: str\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    proof = proof_of(tmp_path, "fibfl", 2, model={"name": "mlp"}, task={"name": "targets:Named"})
    assert proof["definitions"]["3.1"] is None
    assert {one["why"] for one in proof["on_trust"]} == {"noted by code of your own, and so in events and results"}


def test_a_hub_is_one_beside_an_edge_that_avoids_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    proof = proof_of(tmp_path, "lies:HubWithAnEdge", 8)
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": True, "3.2": False, "3.3": False}
    assert "so it stood between the 3 others" in proof["counted"]["3.2"]


def test_another_ring_each_round_is_counted_over_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lies.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    proof = proof_of(tmp_path, "lies:RestlessRing", 8)
    assert proof["violations"] == []
    assert (proof["definitions"]["3.2"], proof["definitions"]["3.3"]) == (True, False)
    assert (
        "(peer1, peer2 and peer3) in rounds 1 to 8, as `lies:RestlessRing` put the ring into"
        in (proof["counted"]["3.3"])
    )
