"""A peer whose code sends its head where the federation's protocol does not: the receivers refuse it."""

import json
import signal
import textwrap

import pytest
from real_peers import Build, SmallFederation, until

HONEST = """
from typing import ClassVar
from peer.protocols.fibfl import FibFL
from peer.protocols.base import Share

class Mine(FibFL):
    '''FibFL under a name of the user's.'''
    name: str = "mine:Mine"

    async def round(self, peer):
        await peer.train(*self.local())
        received = await peer.exchange("extractor")
        peer.extractor.copy_(sum(one.vector for one in received.values()) / len(received))
"""

SENDS_ALL = """
class Mine(Mine):
    def shares(self, rounds):
        return (Share("model"),)

    async def round(self, peer):
        await peer.train(*self.local())
        await peer.exchange("model")
"""

FORGED = """
import asyncio, hashlib, json
from dataclasses import asdict, replace
from peer.network.wire.manifest import Manifest
from peer.network.network import Network

def forged(self):
    (model,) = self.payloads
    floats = 116_352
    extractor = tuple(t for t in model.tensors if t[0].startswith("extractor"))
    shown = replace(model, name="extractor", size=floats, tensors=extractor, head=(0, 0))
    told = {"payloads": [asdict(shown)], "data": self.data}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

async def unread(*_, **__):
    await asyncio.Event().wait()

Manifest.digest = property(forged)
Network.message = unread  # or it would stop by itself: what the honest ones send is no `model`
"""


@pytest.fixture
def modified(federation: Build) -> SmallFederation:
    """Three peers of the user's honest protocol; peer0 gets its code from the directory `modified`."""
    made = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, 3, patience=60)
    content = json.loads((made.directory / "federation.yaml").read_text())
    content["protocol"]["name"] = "mine:Mine"
    for code, name in ((HONEST, "honest"), (HONEST + SENDS_ALL, "modified")):
        (made.directory / name).mkdir()
        (made.directory / name / "mine.py").write_text(textwrap.dedent(code))
        (made.directory / f"{name}.yaml").write_text(json.dumps({**content, "code": name}))
    for id in made.ids:
        made.configure(id, federation="modified.yaml" if id == "peer0" else "honest.yaml")
    return made


def test_the_honest_ones_alone_finish(modified: SmallFederation) -> None:
    modified.configure("peer0", federation="honest.yaml")
    modified.start()
    assert set(modified.wait().values()) == {0}


def test_another_declaration_is_no_member(modified: SmallFederation) -> None:
    modified.start()
    until(lambda: "other classes, inputs or tensors" in modified.log("peer0"), 60, "peer0 says why it is refused")
    for id in ("peer1", "peer2"):
        assert modified.await_event(id, "refused", seconds=60)["caller"] == "peer0"
    assert not any(modified.events(id, "round") for id in modified.ids)


def test_a_forged_declaration_does_not_help(modified: SmallFederation) -> None:
    module = modified.directory / "modified" / "mine.py"
    module.write_text(module.read_text() + FORGED)
    modified.start()
    told = modified.await_event("peer0", "link", state="suspected")
    assert "it does not take what is sent to it: refused: bytes 0 to 470568 of `extractor`" in told["reason"]

    def refused() -> bool:
        return any(modified.events(id, "refused") for id in ("peer1", "peer2"))

    until(refused, 60, "a receiver reports it")
    (first, *_) = [*modified.events("peer1", "refused"), *modified.events("peer2", "refused")]
    assert first["caller"] == "peer0"
    assert "bytes 0 to 470568 of `extractor`, which has 465408" in first["reason"]
    assert all(peer.running for peer in modified.peers.values())
    modified.peers["peer0"].signal(signal.SIGKILL)
    modified.peers["peer0"].wait()
    module.write_text(textwrap.dedent(HONEST))
    modified.start("peer0")  # what is taken now is what an honest peer0 sends
    assert modified.wait() == dict.fromkeys(modified.ids, 0)
