"""What a peer answers to a Status request."""

from peer.learning.training.evaluation import Evaluation
from peer.network.network import Network
from peer.network.wire.messages import Resources, StatusReply
from peer.runtime.course import Course
from peer.runtime.local_peer import LocalPeer
from peer.spec.federation import Spec


def status_reply(
    network: Network, course: Course, state: str, peer: LocalPeer, evaluation: Evaluation | None, resources: Resources
) -> bytes:
    """Id, state, round, neighbours, figures, bytes and resources, as they are now."""
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
    ).SerializeToString()


def _headline(evaluation: Evaluation, spec: Spec) -> float | None:
    return evaluation.by(spec.test) if spec.test else evaluation.figures[spec.task.headline.name]
