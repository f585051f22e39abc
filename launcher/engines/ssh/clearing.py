"""`--fresh`: nothing of an earlier run stays on its hosts, on those neither that are no longer listed."""

import asyncio

from launcher.engines.base import Run
from launcher.engines.ssh import identity
from launcher.engines.ssh.agent import RefusedError
from launcher.engines.ssh.visit import Visit, visits
from peer.errors import FailedError


async def clear(run: Run) -> None:
    """Ends the peers and removes their files. FailedError, before any of it, names hosts that cannot be reached."""
    placed = identity.earlier(run)
    async with visits({name: host for name, (host, _) in placed.items()}) as met:
        away = [
            f"{name} cannot be reached ({why}), and {', '.join(placed[name][1])} of the earlier run may still be there"
            for name, why in met.items()
            if isinstance(why, str)
        ]
        if away:
            raise FailedError(f"{'; '.join(away)}: try again when that is mended, or choose another --out")
        await asyncio.gather(
            *(_clear(run, one, placed[name][1]) for name, one in met.items() if isinstance(one, Visit))
        )


async def _clear(run: Run, visit: Visit, ids: list[str]) -> None:
    directory = visit.host.run(run.files.path.name)
    try:
        await visit.ask("discard", directory=directory, run=identity.known(run), ids=ids)
    except RefusedError as error:
        raise FailedError(f"{visit.host.host}: {error}") from None
