"""A federation's settings as its pods see them: addresses, paths and names inside a cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.errors import InputError
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec

PEER_PORT, HEALTH_PORT = 7700, 7800
CONFIG, RUNS, DATA, CODE, TLS = (
    Path("/", *parts) for parts in (("etc", "dfl"), ("runs",), ("data",), ("code",), ("tls",))
)
LONGEST_NAME = 63
"""Of a label in DNS."""


@dataclass(frozen=True)
class Place:
    """One federation in a cluster. `certificates`: whether its peers have any."""

    spec: Spec
    certificates: bool = False
    mark: str = ""
    """What tells its name from that of another run of the same federation; empty for none."""
    device: str = "auto"

    @property
    def name(self) -> str:
        """Of the Job and its service; InputError where it makes no name in DNS."""
        name = re.sub(r"[^a-z0-9]+", "-", f"{self.spec.name}-{self.mark}".lower()).strip("-")
        pods = f"{name}-{len(self.spec.ids) - 1}"
        if not re.fullmatch(r"[a-z].*", name) or len(pods) > LONGEST_NAME:
            raise InputError(
                f"the name `{self.spec.name}` cannot name a service: begin it with a letter, with {LONGEST_NAME} "
                "characters at most for it and a peer's number"
            )
        return name

    def address(self, index: int) -> str:
        """The pods of an Indexed Job are called by their number; the headless service makes that a name in DNS."""
        return f"{self.name}-{index}.{self.name}:{PEER_PORT}"

    def files(self) -> dict[str, str]:
        """The settings files of all peers, by name; a peer's is its number, so that a pod can find it."""
        files = {"federation.yaml": dump_yaml(self._federation())}
        return files | {f"{index}.yaml": dump_yaml(self._peer(id)) for index, id in enumerate(self.spec.ids)}

    def _federation(self) -> Mapping[str, Any]:
        content = self.spec.model_dump(mode="json", exclude_none=True)
        sources = [content["data"], *(member["data"] for member in content["ring"] if "data" in member)]
        content.pop("code", None)
        if self.spec.own_code:
            content["code"] = str(CODE)
        if "recording" in content:
            content["recording"] = str(DATA / "recording")
        for source in (*sources, content["model"]):
            source.update({key: _inside(source[key]) for key in ("root", "path", "weights") if key in source})
        for index, member in enumerate(content["ring"]):
            member["address"] = self.address(index)
            member.pop("dials_out", None)  # in a cluster all reach each other
        return content

    def _peer(self, id: str) -> Mapping[str, Any]:
        content: dict[str, Any] = {"federation": "federation.yaml", "id": id, "listen": f"0.0.0.0:{PEER_PORT}"}
        content |= {"health": f"0.0.0.0:{HEALTH_PORT}", "out": str(RUNS / id)}
        content |= {"device": self.device} if self.device != "auto" else {}
        if self.certificates:
            content |= {"tls": {what: str(TLS / f"{what}.pem") for what in ("ca", "cert", "key")}}
        return content


def _inside(path: str) -> str:
    """Where data lie in a pod: by the name of the file or directory, or from the part on that differs by peer."""
    parts = Path(path).parts
    own = next((place for place, part in enumerate(parts) if "{id}" in part), len(parts) - 1)
    return str(DATA.joinpath(*parts[own:]))
