"""`dfl-launch check`: what a federation would need, without starting any of it.

The plan says what the data and the model come to. Here the traffic is counted: each peer's calls in a dry run of the
protocol. It finds protocols that would wait for ever, too: every peer must make the same collective calls in the same
order.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

from launcher.command_spec import resolved
from launcher.engines.preflight import check_resources
from launcher.output import Output
from launcher.plan import Plan, plan
from launcher.reports import resource_estimate
from launcher.reports.resource_estimate import ResourceEstimate
from peer.errors import InputError
from peer.plugins import describe_error
from peer.protocols.base import Protocol
from peer.runtime.dry_run import FLOAT32_BYTES, FLOAT64_BYTES, KNOWN_RECORDS, DryRun
from peer.spec.federation import IMPUTED, Spec
from peer.spec.peer import PeerConfig, check_plaintext

MAX_PEERS_SHOWN = 16
"""Peers whose traffic is counted and shown; the others of a larger federation are like them."""


def check_command(arguments: argparse.Namespace, output: Output) -> int:
    """Show shapes, and each peer's samples, bytes and disk. InputError if the federation cannot run."""
    spec = resolved(arguments)
    made = plan(spec)
    needs = ResourceEstimate(made, asyncio.run(traffic(made, spec.ids[:MAX_PEERS_SHOWN])), lacking(spec))
    if output.as_json:
        output.document(needs.plain())
    else:
        resource_estimate.show(needs, output.console)
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
    found, calls = {}, dict[str, Calls]()
    for id in ids:
        dry_run = DryRun(id, spec.protocol, made.dry_run_input(id))
        try:
            setup = await dry_run.set_up(spec.init) + settling(made)
            found[id] = [
                setup,
                *[await dry_run.count(number) + more for number, more in zip(rounds, figures, strict=True)],
            ]
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            _check_awaited(spec.protocol.name, dry_run)
            if ":" not in spec.protocol.name:
                raise
            raise InputError(
                f"`{spec.protocol.name}` fails in a dry run, in round {dry_run.round}: {describe_error(error)}"
            ) from error
        _check_awaited(spec.protocol.name, dry_run)
        calls[id] = dry_run.calls
        if ":" in spec.protocol.name and len(rounds) == spec.rounds:
            _check_kept(spec.protocol, dry_run)
    _check_alike(spec.protocol.name, calls)
    return found


def settling(made: Plan) -> int:
    """Bytes that a peer sends so that columns can be imputed and standardised together."""
    spec, peers = made.spec, len(made.spec.ids)
    if not spec.found_together:
        return 0
    first = made.datasets[spec.ids[0]]
    (columns,) = first.shape
    sizes = [2 * len(first.names.rules) if name == IMPUTED else 2 * int(columns) for name in spec.found_together]
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


def _call(call: tuple[int | str, ...] | None) -> str:
    return "nothing more" if call is None else f"{call[1]}({', '.join(map(repr, call[2:]))}) in round {call[0]}"
