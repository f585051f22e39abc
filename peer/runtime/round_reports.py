"""What a peer tells of a round when it is over, and of all rounds in the end."""

import json
from dataclasses import asdict

from peer.learning.training.evaluation import Evaluation
from peer.runtime.local_peer import LocalPeer
from peer.telemetry.events import LARGEST_FIGURE, RoundDone
from peer.telemetry.results import Result


def trace_facts(peer: LocalPeer) -> dict[str, object]:
    """What a trace says of its round beside the vectors."""
    return {
        "samples": peer.samples,
        "ring": json.dumps(peer.ring),
        "view": peer.network.identity.view,
        "participated": peer.trained_this_round,
        **peer.noted,
    }


def measured(evaluation: Evaluation) -> dict[str, float | None]:
    """The task's figures, as far as they can be written down."""
    return {name: value if abs(value) <= LARGEST_FIGURE else None for name, value in evaluation.figures.items()}


def round_done(peer: LocalPeer, evaluation: Evaluation, before: dict[str, float]) -> RoundDone:
    """The event of the present round; `before`: the peer's seconds when it began."""
    traffic, now = peer.network.traffic, asdict(peer.seconds)
    return RoundDone(
        round=peer.round,
        accuracy=evaluation.as_dict(),
        figures=measured(evaluation),
        loss=peer.loss,
        test_loss=evaluation.loss,
        balanced=evaluation.balanced,
        seconds={name: now[name] - before[name] for name in now},
        bytes_sent=traffic.sent.total(),
        bytes_received=traffic.received.total(),
        tensor_bytes_sent=peer.network.audit.tensor_bytes,
        notes=dict(peer.noted),
    )


def result(peer: LocalPeer, evaluation: Evaluation, digest: str, past: tuple[RoundDone, ...]) -> Result:
    """What the launcher's summary is made of; `digest`: of the model, `past`: all rounds."""
    traffic, ring, spec = peer.network.traffic, peer.ring_order, peer.setup.spec
    return Result(
        id=peer.id,
        rounds=spec.rounds,
        samples=peer.samples,
        accuracy=evaluation.as_dict(),
        figures=measured(evaluation),
        balanced=evaluation.balanced,
        test_loss=evaluation.loss,
        model_sha256=digest,
        bytes_sent=traffic.sent.total(),
        bytes_received=traffic.received.total(),
        tensor_bytes_sent=peer.network.audit.tensor_bytes,
        sent_to=dict(traffic.sent),
        seconds=asdict(peer.seconds),
        ring=ring.order,
        ring_cost={"before": ring.cost_before, "after": ring.cost_after},
        history=past,
        replicated=peer.state.digests(spec.protocol.replicated),
    )
