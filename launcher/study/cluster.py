"""A Dask scheduler that is there already: is it one, has it workers, and would they come to the same bits?"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from launcher.study.code import code, differing
from launcher.study.remote import who
from peer.errors import FailedError, InputError
from peer.text import one_line

CONNECT, APPEAR, ANSWER = 15.0, 30.0, 10.0
"""Seconds for the scheduler to answer, for the first worker to be there, and for workers to say what they have."""


@dataclass(frozen=True)
class Cluster:
    """client: Dask's, of the scheduler at `address`. code: what its workers must have. refused: by a worker's address,
    why it is given no cell, or nothing."""

    client: Any
    address: str
    code: Mapping[str, str]
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def connected(cls, address: str) -> Iterator[Self]:
        """InputError where there is no scheduler, no worker, or one that would come to other bits."""
        client = _client(address)
        try:
            made = cls(client, address, code())
            made.check()
            yield made
        finally:
            client.close()

    def check(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=APPEAR)
        except TimeoutError:
            raise InputError(f"no worker is connected to the scheduler at {self.address}; {self.way_out}") from None
        try:
            self.client.run_on_scheduler(who)
        except (ImportError, AttributeError) as error:
            why = _without(f"the scheduler at {self.address}", error)
            raise InputError(f"{why}; install the same there and start it again") from None
        self.look()
        if refused := [why for why in self.refused.values() if why]:
            raise InputError(f"{refused[0]}; install the same there and start it again")

    def look(self) -> dict[str, int]:
        """Threads by address of the workers that are connected now and may be given cells."""
        try:
            threads: dict[str, int] = self.client.nthreads()
            for gone in self.refused.keys() - threads.keys():
                del self.refused[gone]
            if new := [worker for worker in threads if worker not in self.refused]:
                with suppress(TimeoutError):  # one that is as slow as that is asked again at the next look
                    self._hear(self.client.run(who, workers=new, on_error="return", callback_timeout=ANSWER))
        except OSError:
            raise self.gone() from None
        return {worker: count for worker, count in threads.items() if self.refused.get(worker) == ""}

    def _hear(self, answers: Mapping[str, Any]) -> None:
        heard = {worker: told for worker, told in answers.items() if not isinstance(told, OSError)}
        self.refused.update({worker: self._why_not(worker, told) for worker, told in heard.items()})

    def _why_not(self, worker: str, told: Any) -> str:
        if isinstance(told, Exception):
            return _without(f"the worker {worker}", told)
        other = differing(self.code, told)
        return other and _has(worker, other)

    def refuse(self, worker: str, other: str) -> None:
        """It has other code, as it has told instead of computing a cell."""
        self.refused[worker] = _has(worker, other)

    @property
    def way_out(self) -> str:
        return f"start one in an environment that has dfl: dask worker {self.address}"

    def gone(self) -> FailedError:
        kept = "the finished cells are kept; start it, and the same command goes on"
        return FailedError(f"the Dask scheduler at {self.address} is gone; {kept}")


def _client(address: str) -> Any:
    import dask

    with dask.config.set({"logging.distributed": "critical"}):  # what it has to say is said by this command
        from distributed import Client, __version__
    try:
        # First of all: a client fails in its own ways at a scheduler of another version, and waits for ever at none.
        there = asyncio.run(_version(address))
        if there != __version__:  # between which Dask promises nothing
            versions = f"Dask {there} and this machine has {__version__}"
            raise InputError(f"the scheduler at {address} has {versions}; install one version on all")
        return Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        way_out = "give the address that `dask scheduler` prints, such as tcp://host:8786"
        why = one_line(error) or f"nothing within {CONNECT:.0f} s"
        raise InputError(f"--dask {address}: no Dask scheduler answers there ({why}); {way_out}") from None


async def _version(address: str) -> str:
    from distributed import Security, rpc

    secured = Security().get_connection_args("client")
    async with asyncio.timeout(CONNECT), rpc(address, connection_args=secured, timeout=CONNECT) as scheduler:
        told: str = (await scheduler.versions())["packages"]["distributed"]
        return told


def _has(worker: str, other: str) -> str:
    return f"the worker {worker} has {other}"


def _without(what: str, error: Exception) -> str:
    return f"{what} cannot load dfl ({one_line(error)})"
