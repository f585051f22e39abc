"""What would keep peers from running on their hosts or from reaching each other, all of it named before a start."""

import asyncio
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from launcher.engines.base import Run
from launcher.engines.local.preflight import check_certificates
from launcher.engines.ssh import identity
from launcher.engines.ssh.agent import RefusedError
from launcher.engines.ssh.placement import Place
from launcher.engines.ssh.reach import unreachable
from launcher.engines.ssh.visit import Visit, visits
from peer.errors import InputError
from peer.spec.peer import PeerConfig, check_plaintext

PYTHON = (3, 11)
ROOM, INSTALLED = 200 << 20, 6 << 30
"""Bytes that must be free for a run, and to install PyTorch and the rest."""
Answer = dict[str, Any]


async def check(run: Run, places: Mapping[str, Place], install: bool) -> None:
    """InputError with everything that was found. Creates nothing, neither here nor there."""
    check_here(run)
    hosts = {place.host.host: place.host for place in places.values()}
    async with visits(hosts) as met:
        here = {name: one for name, one in met.items() if isinstance(one, Visit)}
        wrong = [f"{name}: {one}" for name, one in met.items() if isinstance(one, str)]
        found = await asyncio.gather(*(_survey(run, one, places) for one in here.values()))
        for visit, answer in zip(here.values(), found, strict=True):
            wrong += [f"{visit.host.host}: {what}" for what in _lacking(answer, visit, install)]
        if not install:
            wrong += await devices(run, here, found)
        running = {id for answer in found for id in answer["running"]}
        wrong += await unreachable(run.spec, places, here, running)
    if wrong:
        raise InputError("; ".join(wrong))


def check_here(run: Run) -> None:
    """What this machine has to bring along."""
    try:
        config = PeerConfig(federation=run.files.federation, id=run.spec.ids[0], device=run.device)
    except ValidationError:
        raise InputError(f"--device {run.device}: choose auto, cpu, mps, cuda or cuda:N") from None
    if not run.certs:
        check_plaintext(config, run.spec)
    check_certificates(run.spec, run.certs)


async def _survey(run: Run, visit: Visit, places: Mapping[str, Place]) -> Answer:
    ids = [id for id, place in places.items() if place.host == visit.host]
    directory = visit.host.run(run.files.path.name)
    try:
        found: Answer = await visit.ask("survey", directory=directory, run=identity.known(run), ids=ids)
    except RefusedError as error:
        raise InputError(f"{visit.host.host}: {error}") from None
    return found


def _lacking(answer: Answer, visit: Visit, install: bool) -> Iterator[str]:
    """Of what the host must have."""
    python, ours = ".".join(map(str, answer["python"])), version("dfl")
    if (*answer["python"],) < PYTHON:
        yield f"`{visit.host.python}` is Python {python}, and dfl needs 3.11 or newer; name another in `python`"
    elif install and not answer["venv"]:
        yield f"`{visit.host.python}` has no venv module; install it (python3-venv), or name another in `python`"
    elif not install and answer["dfl"] is None:
        yield f"`{visit.host.python}` has no dfl; name one that has in `python`, or have it installed with --install"
    elif not install and answer["dfl"] != ours:
        yield f"dfl is {answer['dfl']} there and {ours} here; install the same, or give --install"
    room = INSTALLED if install and not answer["installed"] else ROOM
    if answer["free"] < room:
        free, needed = (f"{bytes / 1e6:,.0f} MB" for bytes in (answer["free"], room))
        yield f"{answer['there']}: {free} are free and {needed} needed; make room, or give another `directory`"
    if not answer["writable"]:
        yield f"{answer['there']} cannot be written to; give another `directory`"
    yield from answer["obstacles"]


async def devices(run: Run, here: Mapping[str, Visit], found: list[Answer]) -> list[str]:
    """Of hosts that have dfl, those whose device cannot be used."""
    able = [one for one, answer in zip(here.values(), found, strict=True) if answer["dfl"] == version("dfl")]
    able = [one for one in able if (one.host.device or run.device) not in ("auto", "cpu")]
    said = await asyncio.gather(*(one.ask("device", name=one.host.device or run.device) for one in able))
    return [f"{one.host.host}: {why}" for one, why in zip(able, said, strict=True) if why]
