"""`dfl-launch check`: what a federation would need, without starting any of it, as data and in words.

The plan says what the data and the model come to. Here the traffic is counted: each peer's calls in a dry run of the
protocol. It finds protocols that would wait for ever, too: every peer must make the same collective calls in the same
order.

In reading order: the command; the traffic, and what a dry run finds wrong; the estimate, and how it is shown.
"""

import argparse
import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from math import inf
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from torch import Tensor

from launcher.command_spec import resolved
from launcher.engines.preflight import check_resources
from launcher.output import Output
from launcher.plan import Plan, check_data_repeat, plan
from launcher.table import fitting, named, quantity
from peer.errors import InputError
from peer.learning.training.phase import PROTOCOL_DEFAULTS
from peer.plugins import describe_error, is_stopped
from peer.protocols.base import Protocol
from peer.runtime.dry_run import (
    FLOAT32_BYTES,
    FLOAT64_BYTES,
    KNOWN_RECORDS,
    DryRun,
    Token,
    disk_needed,
    dry_run_figures,
)
from peer.spec.blocks import describe_behaviours
from peer.spec.federation import IMPUTED, Spec
from peer.spec.peer import PeerConfig, check_plaintext, peer_data
from peer.telemetry.events import UNREPEATABLE, Misbehaving
from peer.text import plural, printable

MAX_PEERS_SHOWN = 16
"""Peers whose traffic is counted and shown, or that are named; the others of a larger federation are like them."""


def check_command(arguments: argparse.Namespace, output: Output) -> int:
    """Show shapes, and each peer's samples, bytes and disk. InputError if the federation cannot run."""
    spec = resolved(arguments)
    made = plan(spec)
    check_data_repeat(made)
    needs = ResourceEstimate(made, asyncio.run(traffic(made, spec.ids[:MAX_PEERS_SHOWN])), lacking(spec))
    if output.as_json:
        output.document(needs.plain())
    else:
        output.say(*map(printable, heading(needs)))
        output.console.print(per_peer(needs, output.console))
        if more := len(spec.ids) - len(needs.sent):
            output.console.print(f"and {plural(more, 'more peer')}", highlight=False)
    return 0


def lacking(spec: Spec) -> list[str]:
    """What `run` would refuse without its other arguments, as far as a peer's own file does not have it."""
    first = PeerConfig(federation=Path("federation.yaml"), id=spec.ids[0])
    found = []
    for look in (partial(check_resources, spec, Path("runs") / spec.name), partial(check_plaintext, first, spec)):
        try:
            look()
        except InputError as error:
            found.append(str(error))
    return found


Calls = list[tuple[int | str, ...]]


async def traffic(made: Plan, ids: Sequence[str]) -> dict[str, list[int]]:
    """Bytes of tensors and numbers that each of `ids` sends: in the set-up, then in each round counted."""
    spec, rounds = made.spec, made.rounds(len(ids))
    figures = [FLOAT64_BYTES * (len(spec.ids) - 1) * spec.may_end_after(number) for number in rounds]
    found, calls, tokens = {}, dict[str, Calls](), dict[str, Sequence[Token]]()
    for id in ids:
        dry_run = DryRun(id, made.dry_run_input(id))
        try:
            setup = await dry_run.set_up() + settling(made)
            counts = [await dry_run.count(number) for number in rounds]
            found[id] = [setup, *map(add, counts, figures)]
        except InputError:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if is_stopped(error):
                raise
            _check_awaited(spec.protocol.name, dry_run)
            if ":" not in spec.protocol.name:
                raise
            raise InputError(
                f"`{spec.protocol.name}` fails in a dry run, in round {dry_run.round}: {describe_error(error)}"
            ) from error
        _check_awaited(spec.protocol.name, dry_run)
        calls[id], tokens[id] = dry_run.calls, dry_run.tokens
        if ":" in spec.protocol.name and len(rounds) == spec.rounds:
            _check_kept(spec.protocol, dry_run)
    _check_alike(spec.protocol.name, calls)
    if len(ids) == len(spec.ids):
        _check_tokens(spec.protocol.name, tokens, _rounds_foreseen(calls))
    if ":" in spec.protocol.name:
        await _check_repeatable(made, ids[0], rounds)
    return found


def settling(made: Plan) -> int:
    """Bytes that a peer sends so that columns can be imputed and standardised together."""
    spec, peers = made.spec, len(made.spec.ids)
    if not spec.found_together:
        return 0
    (columns,) = made.model.shape
    sizes = [2 * len(made.model.names.rules) if name == IMPUTED else 2 * int(columns) for name in spec.found_together]
    return sum(2 * (peers - 1) * size * FLOAT32_BYTES // peers for size in sizes)


def _check_awaited(protocol: str, dry_run: DryRun) -> None:
    """InputError when a protocol calls `peer.exchange` or its like without `await`: it would send nothing."""
    for called in dry_run.never_awaited():
        raise InputError(f"`{protocol}` calls `{called}` and does not wait for it; write `await` before the call")


def _check_kept(protocol: Protocol, dry_run: DryRun) -> None:
    """InputError where a protocol says of a name that it never changes and keeps nothing under it, as if misspelt."""
    for name in protocol.state_contract.never_kept(dry_run.state):
        raise InputError(
            f"`{protocol.name}` declares {name!r} as unchanging and keeps nothing under that name; write "
            f"peer.state[{name!r}] = ... or take it out of `unchanging`"
        )


async def _check_repeatable(made: Plan, id: str, rounds: Sequence[int]) -> None:
    """InputError where a peer that plays the same rounds again, as after a crash, comes to other bits."""
    journal, played = list[Tensor](), list[dict[str, str]]()
    for _ in range(2):
        dry_run = DryRun(id, made.dry_run_input(id), journal)
        await dry_run.set_up()
        for number in rounds:
            await dry_run.count(number)
        played.append(dry_run.digests())
    first, again = played
    for name in (name for name in again if again[name] != first.get(name)):
        raise InputError(
            f"`{made.spec.protocol.name}` comes to other values of {name} when it plays a round again, as after "
            "a crash; draw by peer.shared_generator(...) or peer.once(...), and keep what it remembers in peer.state"
        )


def _check_alike(protocol: str, calls: Mapping[str, Calls]) -> None:
    """InputError unless all make the same collective calls: a peer with one more would wait without end.

    As far as it can be known: what peers do after a `gather` may rest on what the others told.
    """
    (first, reference), *others = calls.items()
    for id, made in others:
        for ours, theirs in zip_longest(reference, made):
            if ours != theirs:
                said = " and ".join(f"{who} calls {_call(call)}" for who, call in ((first, ours), (id, theirs)))
                raise InputError(f"`{protocol}`: {said}; every peer must make the same calls in the same order")
            if ours and ours[1] == "gather" and ours[2] not in KNOWN_RECORDS:
                break


def _rounds_foreseen(calls: Mapping[str, Calls]) -> float:
    """The rounds below this one rest on nothing that others tell, of which a dry run knows only this peer's own."""
    told = (call for made in calls.values() for call in made if call[1] == "gather" and call[2] not in KNOWN_RECORDS)
    return min((int(call[0]) for call in told), default=inf)


def _check_tokens(protocol: str, tokens: Mapping[str, Sequence[Token]], end: float) -> None:
    """InputError where peers wait for a token that nobody passes them, as when all receive before they pass, or pass
    one that nobody takes.

    tokens: every peer's; those of round `end` and later may rest on what others tell. All other calls are taken to end.
    """
    for round in sorted({token.round for made in tokens.values() for token in made if token.round < end}):
        left = {id: deque(token for token in made if token.round == round) for id, made in tokens.items()}
        on_the_way, moved = Counter[tuple[str, str]](), True
        while moved:
            moved = False
            for id, calls in left.items():
                while calls and (calls[0].passed or on_the_way[calls[0].left, calls[0].vector]):
                    token, moved = calls.popleft(), True
                    on_the_way[id if token.passed else token.left, token.vector] += 1 if token.passed else -1
        if waiting := [id for id, calls in left.items() if calls]:
            raise InputError(
                f"`{protocol}`: in round {round} {' and '.join(waiting)} would wait for ever for a token that nobody "
                "passes; one peer must call `pass_token` before it calls `receive_token`"
            )
        for id, vector in +on_the_way:
            raise InputError(
                f"`{protocol}`: in round {round} nobody takes the token `{vector}` that {id} passes; its right "
                "neighbour must call `receive_token`"
            )


def _call(call: tuple[int | str, ...] | None) -> str:
    return "nothing more" if call is None else f"{call[1]}({', '.join(map(repr, call[2:]))}) in round {call[0]}"


@dataclass(frozen=True)
class ResourceEstimate:
    """What a plan comes to.

    sent: bytes of tensors and records that a peer sends at the start, then in each round that was counted, by id; of
    the first peers of a larger federation: the others are like them.
    lacking: what `run` would refuse, a sentence each.
    """

    made: Plan
    sent: Mapping[str, Sequence[int]]
    lacking: Sequence[str] = ()

    @property
    def a_round(self) -> float:
        """Bytes that a peer sends in a round, by the mean."""
        return float(np.mean([np.mean(rounds) for _, *rounds in self.sent.values()]))

    @property
    def sent_in_all(self) -> float:
        """Bytes that all peers send in the whole run."""
        spec = self.made.spec
        start = np.mean([setup for setup, *_ in self.sent.values()])
        return float(len(spec.ids) * (start + self.a_round * spec.rounds))

    @property
    def disk(self) -> int:
        """Bytes on disk that a peer needs at most, by estimate."""
        made = self.made
        figures = dry_run_figures(made.spec.ids[0], made.dry_run_input(made.spec.ids[0]))
        busiest = max(max(counts) for counts in self.sent.values())
        return disk_needed(made.spec, made.model.sizes["model"], figures._replace(busiest=busiest))

    def plain(self) -> dict[str, Any]:
        """The estimate for programs: the model in values, all else in bytes."""
        made, spec, disk = self.made, self.made.spec, self.disk
        return {
            "name": spec.name,
            "protocol": spec.protocol.name,
            "peers": len(spec.ids),
            "rounds": spec.rounds,
            "seed": spec.seed,
            "data": spec.data.name,
            "model": {"name": spec.model.name, **made.model.sizes},
            "edges": spec.protocol.graph,
            "bytes": {"a_round": self.a_round, "in_all": self.sent_in_all},
            "disk": {"a_peer": disk, "together": disk * len(spec.ids)},
            "lacking": [*self.lacking],
            "unrepeatable": [*made.unrepeatable],
            "per_peer": [
                {
                    "id": id,
                    "samples": made.sites[id].sizes[0],
                    "classes": made.sites[id].classes if spec.task.has_classes else None,
                    "sends": {"start": start, "a_round": float(np.mean(rounds)), "at_most": max(rounds)},
                }
                for id, (start, *rounds) in self.sent.items()
            ],
        }


AUGMENTED = (
    "{data} changes its samples at random, those of `hold_back` too; give such changes as `transforms`, which only "
    "training uses"
)
SPLIT = ("extractor", "head")


def heading(needs: ResourceEstimate) -> list[str]:
    made, spec, number = needs.made, needs.made.spec, len(needs.made.spec.ids)
    peers, rounds = plural(number, "peer"), plural(spec.rounds, "round")
    parts = (f"{part} {made.model.sizes[part]:,} values ({quantity(4 * made.model.sizes[part])})" for part in SPLIT)
    disk = needs.disk
    said = [
        f"{spec.name}: {spec.protocol.name}, {peers}, {rounds}, seed {spec.seed}",
        f"data: {of_whom(spec)}, input {made.model.shape}, {spec.task.outputs_in_words(made.model.classes)}",
        *remarks(made),
        f"model: {spec.model.name}, {', '.join([*parts, *made.model.remarks])}",
        f"edges: {spec.protocol.graph}; leaves the peer: {sent_in_words(spec)}{travels(spec)}",
        f"bytes: {quantity(needs.a_round)} a peer and round, {quantity(needs.sent_in_all)} in all",
        f"disk: up to {quantity(disk)} a peer, {quantity(disk * number)} together (an estimate)",
    ]
    said += training(spec)
    if spec.data.drift:
        said.append(f"drift: {'; '.join(map(str, spec.data.drift))}")
    said += [UNREPEATABLE.format(data=name) for name in made.unrepeatable]
    said += [AUGMENTED.format(data=name) for name in made.augmented]
    said += [f"lacking: {one}" for one in needs.lacking]
    return [*said, *([str(Misbehaving(peers=describe_behaviours(spec.behaviour)))] if spec.behaviour else [])]


def of_whom(spec: Spec) -> str:
    """Say which data set is split, and how, and which peers have their own data."""
    data, ids = spec.data, [id for id in spec.ids if peer_data(id, spec)]
    if len(ids) == len(spec.ids):
        return "each peer has its own"
    own = f" (but {named(ids, MAX_PEERS_SHOWN)} with data of their own)" if ids else ""
    return f"{data.name}, split {data.partition.kind}{own}"


def remarks(made: Plan) -> list[str]:
    """How the data were read, where they did not say so themselves; whose they are, where that differs."""
    said: dict[str, list[str]] = {}
    for id, site in made.sites.items():
        for remark in site.remarks:
            said.setdefault(remark, []).append(id)
    return [
        f"read: {remark}" + (f" ({named(ids, MAX_PEERS_SHOWN)})" if len(ids) < len(made.sites) else "")
        for remark, ids in said.items()
    ]


def sent_in_words(spec: Spec) -> str:
    """What leaves a peer, in words."""
    declared = spec.declarations()
    vectors = dict.fromkeys(share.vector + (" with a number" if share.scalars else "") for share in declared.shares)
    return ", ".join([*vectors, *(record.name for record in declared.records), *spec.found_together]) or "nothing"


def travels(spec: Spec) -> str:
    """Say in which encoding vectors travel, if it is not the plain one."""
    if spec.wire.kind == "float32":
        return ""
    if any(spec.wire.shortens(share) for share in spec.protocol.shares(spec.rounds)):
        return f"; travels as {spec.wire.kind}"
    return f"; `wire: {spec.wire.kind}` changes nothing"


def training(spec: Spec) -> list[str]:
    """What of local training is not the protocol's own; whether two runs end in the same bits."""
    how, said = spec.training, []
    if how == PROTOCOL_DEFAULTS:
        return []
    given = how.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    for key, value in given.items():
        words = value.pop("name", "") if isinstance(value, dict) else str(value)
        rest = ", ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, dict) else ""
        said.append(f"{key} {words}{' ' if words and rest else ''}{f'({rest})' if words and rest else rest}")
    reason = "; how many steps that is differs from run to run, so two runs differ in their bits"
    clock = "" if how.is_reproducible else reason
    tried = "; called here once a phase, with 2 samples" if how.loop else ""
    return [f"training: {'; '.join(said)}{tried}{clock}"]


def per_peer(needs: ResourceEstimate, console: Console) -> Table:
    """Samples and bytes of each peer; the bytes are tensors and records, without framing (1 % at most)."""
    made = needs.made
    rows = [
        {
            "peer": id,
            "samples": str(made.sites[id].sizes[0]),
            **({"classes": str(made.sites[id].classes)} if made.spec.task.has_classes else {}),
            "sends at the start": quantity(setup),
            "sends a round": quantity(sum(rounds) / len(rounds)),
            "at most": quantity(max(rounds)),
        }
        for id, (setup, *rounds) in needs.sent.items()
    ]
    return fitting(rows, ["sends at the start", "at most", "classes"], console)
