"""`dfl-launch check`: what a federation would need, without starting any of it."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from launcher.engines.local.preflight import check_resources
from launcher.formatting import plural, quantity
from launcher.plan import Plan, plan, traffic
from launcher.table import fitting
from peer.errors import InputError
from peer.learning.training.settings import AS_IT_IS
from peer.runtime.disk import disk_needed, rehearse
from peer.spec.behaviour import in_words
from peer.spec.federation import FIGURE, Spec
from peer.spec.peer import PeerConfig, check_plaintext
from peer.telemetry.events import Misbehaving
from peer.text import printable

SHOWN = 16
"""Peers whose traffic is counted and shown; the others of a larger federation are like them."""
SPLIT = ("extractor", "head")


def check(spec: Spec, console: Console) -> None:
    """Prints shapes, and each peer's samples, bytes and disk. InputError if the federation cannot run."""
    made = plan(spec)
    sent = asyncio.run(traffic(made, spec.ids[:SHOWN]))
    for line in heading(made, sent):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    console.print(peers(made, sent, console))
    if len(spec.ids) > SHOWN:
        console.print(f"and {plural(len(spec.ids) - SHOWN, 'more peer')}", highlight=False)


def heading(made: Plan, sent: Mapping[str, list[int]]) -> list[str]:
    spec, protocol, number = made.spec, made.spec.protocol, len(made.spec.ids)
    parts = (f"{part} {made.sizes[part]:,} values ({quantity(4 * made.sizes[part])})" for part in SPLIT)
    start = np.mean([setup for setup, *_ in sent.values()])
    mean = np.mean([np.mean(rounds) for _, *rounds in sent.values()])
    rehearsed = rehearse(spec, spec.ids[0], made.rehearsal(spec.ids[0]))
    busiest = max(max(counts) for counts in sent.values())
    disk = disk_needed(spec, made.sizes["model"], rehearsed._replace(busiest=busiest))
    said = [
        f"{spec.name}: {protocol.name}, {plural(number, 'peer')}, {plural(spec.rounds, 'round')}, seed {spec.seed}",
        f"data: {of_whom(made)}, input {made.datasets[spec.ids[0]].shape}, "
        f"{spec.task.outputs_in_words(made.datasets[spec.ids[0]].classes)}",
        f"model: {spec.model.name}, {', '.join([*parts, *made.model.remarks])}",
        f"edges: {protocol.graph}; leaves the peer: {leaves(spec)}{travels(spec)}",
        f"bytes: {quantity(mean)} a peer and round, {quantity(number * (start + mean * spec.rounds))} in all",
        f"disk: up to {quantity(disk)} a peer, {quantity(disk * number)} together (an estimate)",
    ]
    said += training(spec)
    if spec.data.drift:
        said.append(f"drift: {'; '.join(map(str, spec.data.drift))}")
    said += lacking(spec)
    return [*said, *([str(Misbehaving(peers=in_words(spec.behaviour)))] if spec.behaviour else [])]


def of_whom(made: Plan) -> str:
    """Which data set is split and how; who has data of its own."""
    data, own = made.spec.data, ", ".join(made.own[:SHOWN]) + (", ..." if len(made.own) > SHOWN else "")
    if len(made.own) == len(made.spec.ids):
        return "each peer has its own"
    return f"{data.name}, split {data.partition.kind}" + (f" (but {own} with data of their own)" if own else "")


def leaves(spec: Spec) -> str:
    """What leaves a peer, in words."""
    return f"{spec.protocol.leaves}, {FIGURE.name}" if spec.stop_early else spec.protocol.leaves


def travels(spec: Spec) -> str:
    """In which form, if it is not the plain one."""
    if spec.wire.kind == "float32":
        return ""
    if any(spec.wire.shortens(share) for share in spec.protocol.shares(spec.rounds)):
        return f"; travels as {spec.wire.kind}"
    return f"; `wire: {spec.wire.kind}` changes nothing"


def training(spec: Spec) -> list[str]:
    """What of local training is not the protocol's own; whether two runs end in the same bits."""
    how, said = spec.training, []
    if how == AS_IT_IS:
        return []
    given = how.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    for key, value in given.items():
        words = value.pop("name", "") if isinstance(value, dict) else str(value)
        rest = ", ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, dict) else ""
        said.append(f"{key} {words}{' ' if words and rest else ''}{f'({rest})' if words and rest else rest}")
    clock = (
        "" if how.same_bits else "; how many steps that is differs from run to run, so two runs differ in their bits"
    )
    return [f"training: {'; '.join(said)}{clock}"]


def lacking(spec: Spec) -> list[str]:
    """What `run` would refuse without its other arguments, as far as a peer's own file does not have it."""
    first = PeerConfig(federation=Path("federation.yaml"), id=spec.ids[0])
    said = []
    for look in (partial(check_resources, spec, Path("runs") / spec.name), partial(check_plaintext, first, spec)):
        try:
            look()
        except InputError as error:
            said.append(f"lacking: {error}")
    return said


def peers(made: Plan, sent: Mapping[str, list[int]], console: Console) -> Table:
    """Samples and bytes of each peer; the bytes are tensors and records, without framing (1 % at most)."""
    rows = [
        {
            "peer": id,
            "samples": str(len(made.shards[id])),
            **({"classes": str(np.count_nonzero(made.counts[id]))} if made.spec.task.has_classes else {}),
            "sends at the start": quantity(setup),
            "sends a round": quantity(sum(rounds) / len(rounds)),
            "at most": quantity(max(rounds)),
        }
        for id, (setup, *rounds) in sent.items()
    ]
    return fitting(rows, ["sends at the start", "at most", "classes"], console)
