"""In this directory the fork server's peers can be told to die at an event (faults.injected)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_peers import Nursery

from launcher.engines.local import ForkServer

TESTS = Path(__file__).parents[1]


class Accidents(Nursery):
    """Starts peers that obey FAULT."""

    async def _serve(self) -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        async with ForkServer(entry="faults.injected:main", grace=3.0) as server:
            self._server.set_result(server)
            await self._closing.wait()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Nursery]:
    nursery = Accidents()
    yield nursery
    nursery.close()
