"""How a peer presents itself to others: identity, what it may send, addresses of its view's members, status."""

from collections.abc import Callable

from peer.learning.device import memory_for
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import NetworkCallbacks, NetworkState
from peer.network.transport import StatusHandler, Transport
from peer.network.wire.messages import Resources, StatusReply
from peer.runtime.lifecycle import Lifecycle, RuntimeLimits
from peer.runtime.manifest import travelling_manifest
from peer.runtime.resources import measure
from peer.runtime.rounds.local_peer import Participant
from peer.runtime.rounds.reports import Evaluator
from peer.runtime.setup import Setup
from peer.telemetry.events import Shortage, Waiting
from peer.versions import release

MakeTransport = Callable[[StatusHandler], Transport]


def open_network(setup: Setup, transport: Transport, bounds: RuntimeLimits, lifecycle: Lifecycle) -> Network:
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
    of = spec.addresses
    addresses = {id: of[id] for id in known}

    def state() -> tuple[str, int]:
        return lifecycle.state, lifecycle.round

    def resources() -> Resources:
        rates = {peer: link.bytes_per_second for peer, link in network.links.items()}
        return measure(setup.model.device, len(setup.shard.train), rates)

    node = NetworkState(identity, addresses, transport, bounds.timeouts, bounds.limits)
    callbacks = NetworkCallbacks(lifecycle.report, state, resources, memory_for(setup.model.device), gate.answer)
    network = Network(node, manifest, callbacks)
    return network


def status_reply(participant: Participant, evaluator: Evaluator) -> bytes:
    """The serialised reply to a Status request: what the peer does now, its neighbours, figures and resources."""
    spec, view, network = participant.setup.spec, participant.setup.view, participant.network
    found, waiting = evaluator.evaluation, participant.setup.gate.waiting
    accuracy = found.by(spec.test) if found and spec.test else None
    return StatusReply(
        id=participant.face.id,
        federation=spec.name,
        state=participant.lifecycle.state,
        round=participant.lifecycle.round,
        rounds=network.last_round if evaluator.progress.stopped_early else spec.rounds,
        neighbours=[
            StatusReply.Neighbour(
                id=neighbour.id,
                address=neighbour.address or "",
                state=neighbour.state,
                reason=neighbour.reason,
                durable=network.durability.of(neighbour.id),
                resources=neighbour.signs.resources,
                release=neighbour.release,
            )
            for neighbour in network.edges.neighbours.values()
        ],
        accuracy=accuracy,
        figure=found.figures[spec.task.headline.name] if found and not spec.test else accuracy,
        bytes_sent=network.traffic.sent.total(),
        bytes_received=network.traffic.received.total(),
        resources=network.resources(),
        view=view.number,
        first=view.first,
        outside=[id for id in spec.ids if id not in view.members],
        shortage=_shortage(waiting, waiting.shortage) if waiting and waiting.shortage else None,
        certificate_expires=network.transport.certificate_expires,
        release=release(),
        durable=network.durability.own,
    ).SerializeToString()


def _shortage(waiting: Waiting, short: Shortage) -> StatusReply.Shortage:
    awaited = [
        StatusReply.Shortage.Awaited(id=one.id, address=one.address or "", reason=one.reason) for one in waiting.awaited
    ]
    return StatusReply.Shortage(**vars(short), awaited=awaited)
