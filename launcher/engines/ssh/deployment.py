"""The peers of a run on their hosts."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.certificate_files import certificate_files
from launcher.engines.base import Deployment, Run
from launcher.engines.ssh import collection, identity
from launcher.engines.ssh.followed import RemotePeer
from launcher.engines.ssh.link import Link
from launcher.engines.ssh.placement import Place
from peer.errors import FailedError
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec

REACH, END = 60.0, 30.0
"""Seconds that a host is waited for to place files, and to end peers."""
KEEPER = (Path(__file__).parent / "keeper.py").read_text()


class SshDeployment(Deployment):
    """links: by host."""

    def __init__(self, run: Run, places: Mapping[str, Place], links: Mapping[str, Link]) -> None:
        self._run, self._places, self._links = run, places, links
        self._over: set[str] = set()
        """Peers that ended while no launcher saw it."""
        self._starting: set[str] = set()
        self._roots: dict[str, str] = {}
        """The run's directory on each host, absolute."""

    def _link(self, id: str) -> Link:
        return self._links[self._places[id].host.host]

    def _ids(self, link: Link) -> list[str]:
        return [id for id, place in self._places.items() if place.host == link.host]

    async def prepare(self, configs: Mapping[str, Mapping[str, object]]) -> None:
        """Ships settings and certificates, and finds out who runs already."""
        run = identity.settled(self._run, self._places)
        answers = await self._everywhere(
            lambda link: link.ask("place", run=run, ids=self._ids(link), files=self._files(self._ids(link), configs))
        )
        self._roots = {host: answer["root"] for host, answer in answers.items()}
        codes = {id: code for answer in answers.values() for id, code in answer["codes"].items()}
        if any(answer["running"] for answer in answers.values()) or [*codes.values()] == [0] * len(self._places):
            self._over = {*codes}
        else:
            await self._everywhere(lambda link: link.ask("forget", ids=self._ids(link)))

    def _files(self, ids: Sequence[str], configs: Mapping[str, Mapping[str, object]]) -> dict[str, tuple[str, int]]:
        """name: (text, permissions), for these peers and nobody else."""
        files = {"federation.yaml": (shipped(self._run.spec).dump(), 0o600)}
        for id in ids:
            files[f"{id}.yaml"] = (dump_yaml(configs[id]), 0o600)
            if self._run.certs:
                found = certificate_files(self._run.certs, id).values()
                files |= {path.name: (path.read_text(), 0o600) for path in found}
        return files

    async def _everywhere(self, do: Any) -> dict[str, Any]:
        """What each host answers, by host; FailedError naming one that does not."""

        async def one(link: Link) -> Any:
            try:
                async with asyncio.timeout(REACH):
                    return await do(link)
            except TimeoutError:
                raise FailedError(f"{link.host.host} cannot be reached: {link.why or 'timed out'}") from None

        answers = await asyncio.gather(*map(one, self._links.values()))
        return dict(zip(self._links, answers, strict=True))

    async def start(self, id: str) -> RemotePeer:
        link = self._link(id)
        peer = RemotePeer(id, link.host, self._run.files.out(id), link.poke)
        if id in self._over:
            self._over.remove(id)
        else:
            self._starting.add(id)
            await link.ask("start", id=id, keeper=KEEPER)
            self._starting.remove(id)
        link.follow(peer)
        return peer

    async def end(self) -> None:
        for id in self._starting:  # whether it was started nobody knows
            link = self._link(id)
            link.follow(peer := RemotePeer(id, link.host, self._run.files.out(id), link.poke))
            peer.signal(signal.SIGKILL)
        links = self._links.values()
        for link in links:
            if link.running and link.why:
                self._run.say(f"{link.host.host}: waiting up to {END:g} s to end {', '.join(link.running)} there")
        with suppress(TimeoutError):
            async with asyncio.timeout(END):
                await asyncio.gather(*(link.ended() for link in links))
        for link in links:
            if link.running:
                self._run.say(
                    f"{link.host.host} could not be reached ({link.why or 'no answer'}): {', '.join(link.running)} may "
                    "still run there; when it is back, end them with "
                    f"`dfl-launch attach {self._run.files.path}` and Ctrl-C"
                )

    async def collect(self) -> None:
        await asyncio.gather(*map(self._collect, self._links.values()))

    async def _collect(self, link: Link) -> None:
        if link.running:  # it could not be reached
            return
        names = collection.names(self._run.spec, link.host)
        for id in self._ids(link):
            await collection.collect(link, f"{self._roots[link.host.host]}/{id}", self._run.files.out(id), names)


def shipped(spec: Spec) -> Spec:
    """The directory of code is one of this machine; only who uses code of their own has it on the hosts too."""
    return spec if spec.own_code else spec.model_copy(update={"code": None})
