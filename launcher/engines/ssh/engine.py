"""Peers on the machines of a lab, over SSH."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from launcher.engines.base import Deployment, Engine, Run
from launcher.engines.ssh import preflight
from launcher.engines.ssh.clearing import clear
from launcher.engines.ssh.deployment import SshDeployment
from launcher.engines.ssh.hosts import Host, SshSettings
from launcher.engines.ssh.installation import install
from launcher.engines.ssh.link import Link
from launcher.engines.ssh.placement import Place, placement
from peer.spec.federation import Spec
from peer.tasks import background


class SshEngine(Engine[SshSettings]):
    """`--on ssh`: peers go on without the launcher, until they are done or it tells them to stop."""

    name = "ssh"
    outlives_launcher = True
    Settings = SshSettings

    def _places(self, spec: Spec) -> dict[str, Place]:
        return placement(self.settings.hosts, spec)

    def place(self, spec: Spec) -> Spec:
        places = self._places(spec)
        ring = tuple(member.model_copy(update={"address": places[member.id].address}) for member in spec.ring)
        return spec.model_copy(update={"ring": ring})

    def check(self, run: Run) -> None:
        asyncio.run(preflight.check(run, self._places(run.spec), self.settings.install))

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        place = self._places(run.spec)[id]
        config = {**super().config(run, id), "device": place.host.device or run.device}
        config |= {"listen": place.listen} if place.address else {}
        if run.certs:
            config["tls"] = {"ca": "ca.pem", "cert": f"{id}.pem", "key": f"{id}.key"}
        return config

    def clear(self, run: Run) -> None:
        asyncio.run(clear(run))

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        places = self._places(run.spec)
        hosts = {place.host.host: place.host for place in places.values()}
        links = {name: Link(host, host.run(run.files.path.name), run.say) for name, host in hosts.items()}
        deployment = SshDeployment(run, places, links)
        if self.settings.install:
            await install(hosts.values(), self.settings.extras, run.say)
        run.say(where_models_go([*hosts.values()]))
        async with background() as tasks:
            for link in links.values():
                tasks.create_task(link.keep(link.host.interpreter(self.settings.install)))
            await deployment.prepare({id: self.config(run, id) for id in places})
            yield deployment


def where_models_go(hosts: Sequence[Host]) -> str:
    """What leaves the hosts at the end, for whoever starts the run."""
    kept = ", ".join(host.host for host in hosts if host.models == "leave")
    if fetched := ", ".join(host.host for host in hosts if host.models == "fetch"):
        stay = f"those on {kept} stay there" if kept else "`models: leave` in hosts.yaml leaves them there"
        return f"at the end the models on {fetched}, heads included, are copied to this machine; {stay}"
    return f"the models stay on {kept}"
