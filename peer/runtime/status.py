"""What a peer answers to a Status request."""

from peer.learning.training.evaluation import Evaluation
from peer.network.network import Network
from peer.network.wire.messages import Resources, StatusReply
from peer.runtime.course import Course
from peer.runtime.local_peer import LocalPeer
from peer.spec.federation import Spec
from peer.telemetry.events import Shortage, Waiting


def status_reply(
    network: Network,
    course: Course,
    state: str,
    peer: LocalPeer,
    evaluation: Evaluation | None,
    resources: Resources,
    waiting: Waiting | None,
) -> bytes:
    """Id, state, round, neighbours, figures, bytes and resources, as they are now; for which members it waits."""
    spec, view = peer.setup.spec, peer.setup.view
    return StatusReply(
        id=peer.id,
        federation=spec.name,
        state=state,
        round=peer.round,
        rounds=network.last_round if course.over else spec.rounds,
        neighbours=[
            StatusReply.Neighbour(
                id=neighbour.id,
                address=neighbour.address or "",
                state=neighbour.state,
                reason=neighbour.reason,
                durable=network.durability.of(neighbour.id),
                resources=neighbour.resources,
            )
            for neighbour in network.edges.neighbours.values()
        ],
        accuracy=evaluation.by(spec.test) if evaluation and spec.test else None,
        figure=_headline(evaluation, spec) if evaluation else None,
        bytes_sent=network.traffic.sent.total(),
        bytes_received=network.traffic.received.total(),
        resources=resources,
        view=view.number,
        first=view.first,
        outside=[id for id in spec.ids if id not in view.members],
        shortage=_shortage(waiting, waiting.shortage) if waiting and waiting.shortage else None,
    ).SerializeToString()


def _shortage(waiting: Waiting, short: Shortage) -> StatusReply.Shortage:
    awaited = [
        StatusReply.Shortage.Awaited(id=one.id, address=one.address or "", reason=one.reason) for one in waiting.awaited
    ]
    return StatusReply.Shortage(**vars(short), awaited=awaited)


def _headline(evaluation: Evaluation, spec: Spec) -> float | None:
    return evaluation.by(spec.test) if spec.test else evaluation.figures[spec.task.headline.name]
