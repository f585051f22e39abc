"""How a peer presents itself to others: its identity, what it may send, and the addresses of its view's members."""

from collections.abc import Callable

from peer.learning.device import memory_for
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import NetworkCallbacks, NetworkState
from peer.network.transport import StatusHandler, Transport
from peer.network.wire.messages import Resources
from peer.runtime.lifecycle import Lifecycle, RuntimeLimits
from peer.runtime.manifest import travelling_manifest
from peer.runtime.resources import measure
from peer.runtime.setup import Setup

MakeTransport = Callable[[StatusHandler], Transport]


def open_network(setup: Setup, transport: Transport, limits: RuntimeLimits, lifecycle: Lifecycle) -> Network:
    """The network of one peer in one view, which does not listen yet."""
    spec, gate, manifest, agreement = setup.spec, setup.gate, travelling_manifest(setup), setup.agreement
    identity = Identity(
        setup.config.id,
        agreement.digests,
        manifest.digest,
        manifest.data,
        setup.view.number,
        gate.last_rounds,
        rounds=spec.rounds,
        settings=agreement.content,
        keyring=gate.keyring,
    )
    # Without edges no peer waits for another, so only this peer's own address matters.
    known = [setup.config.id] if spec.protocol.graph == "none" else setup.view.members
    addresses = {id: spec.addresses[id] for id in known}

    def state() -> tuple[str, int]:
        return lifecycle.state, lifecycle.round

    def resources() -> Resources:
        rates = {peer: link.bytes_per_second for peer, link in network.links.items()}
        return measure(setup.model.device, len(setup.shard.train), rates)

    node = NetworkState(identity, addresses, transport, limits.timeouts, limits.limits)
    callbacks = NetworkCallbacks(lifecycle.report, state, resources, memory_for(setup.model.device), gate.answer)
    network = Network(node, manifest, callbacks)
    return network
