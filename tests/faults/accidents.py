"""A fork server whose peers can be told to die at an event, or to lie (faults.injected)."""

import os
import signal
from collections.abc import Mapping
from concurrent.futures import as_completed
from pathlib import Path

from real_peers import MINUTE, Nursery, SmallFederation

TESTS = Path(__file__).parents[1]


class Accidents(Nursery):
    """Starts peers that obey FAULT and LIAR."""

    entry = "faults.injected:main"
    preload = (*Nursery.preload, "faults.injected")

    async def _serve(self) -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        await super()._serve()


def start_and_die(federation: SmallFederation, faults: Mapping[str, str]) -> None:
    """Start all, those named each with a FAULT, of which it must die; and each of these again as soon as it is dead."""
    federation.env = {id: {"FAULT": fault} for id, fault in faults.items()}
    federation.start()
    federation.env = {}
    dying = {federation.peers[id].ended: id for id in faults}
    for ended in as_completed(dying, MINUTE):
        assert ended.result() == -signal.SIGKILL, f"{dying[ended]} did not die of {faults[dying[ended]]}"
        federation.start(dying[ended])
