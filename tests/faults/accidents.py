"""A fork server whose peers can be told to die at an event, or to lie (faults.injected)."""

import os
from pathlib import Path

from real_peers import Nursery

from launcher.engines.local.fork_server import ForkServer

TESTS = Path(__file__).parents[1]


class Accidents(Nursery):
    """Starts peers that obey FAULT and LIAR."""

    async def _serve(self) -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        async with ForkServer(entry="faults.injected:main", grace=3.0) as server:
            self._server.set_result(server)
            await self._closing.wait()
