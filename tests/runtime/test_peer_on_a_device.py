"""A peer whose model lies on `meta`, among peers on the CPU: what it would ask of a GPU for each call.

A call that reads a value on the device fails; what `Device` lends is said there.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from faults.scenarios import specification
from meta_device import META, Copy, Device

from peer import federate
from peer.errors import InputError
from peer.network.transport.memory import MemoryNetwork
from peer.protocols.base import Peer
from peer.runtime.data_and_model import fitting_model
from peer.runtime.lifecycle import Lifecycle
from peer.runtime.rounds.learner import Learner
from peer.runtime.rounds.local_peer import LocalPeer
from peer.runtime.runtime import Runtime
from peer.runtime.setup import prepare
from peer.spec.peer import PeerConfig, peer_data
from peer.telemetry.telemetry import Telemetry

VALUES = 35
"""How many values the model has."""


@asynccontextmanager
async def peers(name: str, out: Path) -> AsyncIterator[list[LocalPeer]]:
    """The peers of a scenario, in round 1, all joined; the first one's model is on the device."""
    spec, pipes, made = specification(name), MemoryNetwork(), list[Runtime]()
    async with AsyncExitStack() as running, asyncio.timeout(30):
        executor = running.enter_context(ThreadPoolExecutor(1))
        for member in spec.ring:
            place = out / member.id
            config = PeerConfig(
                federation=out / "f.yaml", id=member.id, device="cpu", out=place, data=peer_data(member.id, spec, None)
            )
            setup = prepare(config, spec)
            if not made:
                setup.model = fitting_model(config, spec, setup.shard, META)
            made.append(Runtime(setup, partial(pipes.transport, member.address), executor, Telemetry()))
        for runtime in made:
            await runtime.network.listen()
            await running.enter_async_context(runtime.network.running())
            runtime.participant.use_first_edges()
            runtime.participant.begin(1)
        await asyncio.gather(*(runtime.network.edges.wait_complete() for runtime in made))
        for runtime in made:
            runtime.lifecycle.become("ready")
        yield [runtime.peer for runtime in made]


ONE = Copy(VALUES, non_blocking=True, pinned=True)


@pytest.mark.parametrize("name", ["every call", "bfloat16"])
async def test_each_vector_leaves_by_one_copy_and_arrives_by_one(name: str, tmp_path: Path) -> None:
    with Device() as device:
        async with peers(name, tmp_path) as made:
            there, others = made[0], len(made) - 1
            device.placed.clear()

            under_way = [peer.exchange("model", loss=0.0, accuracy=0.0) for peer in made]
            assert device.fetched == [ONE], "the same vector goes to all neighbours"
            received = (await asyncio.gather(*under_way))[0]
            assert {one.vector.device for one in received.values()} == {META}
            assert device.placed == [ONE] * others

            await asyncio.gather(*(peer.weighted_mean("model", weight=1) for peer in made))
            assert device.fetched == [ONE] * 2
            assert device.placed == [ONE] * (others + 1)

            for peer in made:
                peer.state["update"] = torch.ones_like(peer.model)
            everybody = await asyncio.gather(*(peer.all_gather("update", samples=1.0) for peer in made))
            assert {one.vector.device for one in everybody[0].values()} == {META}
            assert device.fetched == [ONE] * 3

            await asyncio.gather(*(peer.pass_token("model") for peer in made))
            assert (await asyncio.gather(*(peer.receive_token("model") for peer in made)))[0].device == META
            assert device.fetched == [ONE] * 4
            assert device.placed[-1] == ONE
            assert there.model.device == META
            assert all(copy.non_blocking for copy in device.placed)


async def test_all_samples_lie_where_the_model_does(tmp_path: Path) -> None:
    """Those that it is tested on and those held back, too; also once they are standardised, and after a drift."""
    spec = specification("standardised")
    spec = spec.model_copy(update={"hold_back": 0.3, "data": spec.data.model_copy(update={"validation": 0.2})})
    config = PeerConfig(federation=tmp_path / "f.yaml", id="peer0", device="cpu", out=tmp_path / "peer0")
    setup = prepare(config, spec)
    setup.model = fitting_model(config, spec, setup.shard, META)
    with Device(), ThreadPoolExecutor(1) as executor:
        learner = Learner(setup, executor, Lifecycle(lambda _: None))

        def places() -> list[torch.device | None]:
            shard = learner.shard
            parts = (shard.train, shard.test, shard.validation, shard.held_back, learner.trainer.samples)
            return [part and part.device for part in parts]

        assert places() == [META] * 5
        assert await learner.load_data_for(3)
        assert places() == [META] * 5


def test_a_protocol_reaches_nothing_but_the_interface() -> None:
    public = {name for name in dir(LocalPeer) if not name.startswith("_")}
    assert public <= {*Peer.__annotations__, *dir(Peer)}


def test_federate_refuses_a_device_that_no_peer_can_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="device mps: choose auto, cpu, cuda or cuda:N"):
        federate("federation.yaml", tmp_path, device="mps")
