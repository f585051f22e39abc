"""What a peer tells of a round when it is over, and of all rounds in the end."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version

from peer.learning.training.evaluation import Evaluation
from peer.network.streams.traffic import Traffic
from peer.runtime.course import Course
from peer.runtime.local_peer import LocalPeer
from peer.runtime.setup import Setup
from peer.telemetry.events import SCHEMA, BytesPassed, Note, RoundDone, Started, bounded
from peer.telemetry.results import Earlier, Judged, Result


def trace_facts(peer: LocalPeer) -> dict[str, object]:
    """What a trace says of its round beside the vectors."""
    return {
        "samples": peer.samples,
        "ring": json.dumps(peer.ring),
        "view": peer.network.identity.view,
        "participated": peer.trained_this_round,
        **peer.noted,
    }


def measured(figures: Mapping[str, float]) -> dict[str, float | None]:
    """The task's figures, as far as they can be written down."""
    return {name: bounded(value) for name, value in figures.items()}


def judged(evaluation: Evaluation | None, validation: Mapping[str, float]) -> Judged:
    """The figures of one model; empty where it was not evaluated."""
    if evaluation is None:
        return Judged(accuracy={})
    return Judged(
        accuracy=evaluation.as_dict(),
        figures=measured(evaluation.figures),
        balanced=evaluation.balanced,
        test_loss=bounded(evaluation.loss),
        validation=measured(validation),
    )


def told_of_own(peer: LocalPeer, found: Judged) -> dict[str, Note]:
    """What a user's own code puts into the round's event: figures of their task, notes of their protocol."""
    spec = peer.setup.spec
    figures = found.figures if ":" in spec.task.name else {}
    return {**figures, **(peer.noted if ":" in spec.protocol.name else {})}


def round_done(peer: LocalPeer, found: Judged, before: dict[str, float]) -> RoundDone:
    """The event of the present round; `before`: the peer's seconds when it began."""
    traffic, now = peer.network.traffic, asdict(peer.seconds)
    return RoundDone(
        round=peer.round,
        accuracy=found.accuracy,
        figures=found.figures,
        validation=found.validation,
        loss=bounded(peer.loss),
        test_loss=found.test_loss,
        balanced=found.balanced,
        seconds={name: now[name] - before[name] for name in now},
        bytes_sent=traffic.sent.total(),
        bytes_received=traffic.received.total(),
        tensor_bytes_sent=peer.network.audit.tensor_bytes,
        notes=dict(peer.noted),
    )


def bytes_passed(round: int, passed: Traffic) -> BytesPassed:
    return BytesPassed(round=round, sent=dict(passed.sent), received=dict(passed.received))


def started(setup: Setup, earlier: Earlier) -> Started:
    """The first event of a process in its file."""
    spec, view = setup.spec, setup.view
    return Started(
        schema=SCHEMA,
        version=version("dfl"),
        id=setup.config.id,
        federation=spec.name,
        protocol=spec.protocol.name,
        rounds=spec.rounds,
        restarts=earlier.starts,
        seconds=round(earlier.seconds, 3),
        view=view.number,
        members=view.members,
    )


@dataclass(frozen=True)
class Ending:
    """What a peer has in the end. digest: of its model; past: all rounds; before: its figures before fine-tuning."""

    found: Judged
    digest: str
    past: tuple[RoundDone, ...]
    before: Judged | None
    course: Course


def result(peer: LocalPeer, ending: Ending) -> Result:
    """What the launcher's summary is made of."""
    traffic, ring, spec, found = peer.network.traffic, peer.ring_order, peer.setup.spec, ending.found
    return Result(
        id=peer.id,
        rounds=peer.network.last_round,
        samples=peer.samples,
        accuracy=found.accuracy,
        figures=found.figures,
        balanced=found.balanced,
        test_loss=found.test_loss,
        validation=found.validation,
        best=ending.course.best,
        before_finetuning=ending.before,
        stopped_early=peer.network.last_round < spec.rounds,
        model_sha256=ending.digest,
        bytes_sent=traffic.sent.total(),
        bytes_received=traffic.received.total(),
        tensor_bytes_sent=peer.network.audit.tensor_bytes,
        sent_to=dict(traffic.sent),
        seconds=asdict(peer.seconds),
        ring=ring.order,
        ring_cost={"before": ring.cost_before, "after": ring.cost_after},
        history=ending.past,
        replicated=peer.state.digests(spec.protocol.replicated),
    )
