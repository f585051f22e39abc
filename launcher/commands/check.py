"""`dfl-launch check`: what a federation would need, without starting any of it."""

import asyncio
from functools import partial
from pathlib import Path

from launcher.engines.local.preflight import check_resources
from launcher.output import Output
from launcher.plan import plan, traffic
from launcher.reports import needs_console
from launcher.reports.needs import Needs
from peer.errors import InputError
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig, check_plaintext

SHOWN = 16
"""Peers whose traffic is counted and shown; the others of a larger federation are like them."""


def check(spec: Spec, output: Output) -> None:
    """Tells shapes, and each peer's samples, bytes and disk. InputError if the federation cannot run."""
    made = plan(spec)
    needs = Needs(made, asyncio.run(traffic(made, spec.ids[:SHOWN])), lacking(spec))
    if output.as_json:
        output.document(needs.plain())
    else:
        needs_console.show(needs, output.console)


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
