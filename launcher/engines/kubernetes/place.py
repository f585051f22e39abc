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

    @property
    def name(self) -> str:
        """Of the Job and its service; InputError where it makes no name in DNS."""
        name = re.sub(r"[^a-z0-9]+", "-", self.spec.name.lower()).strip("-")
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
        ring = [{"id": id, "address": self.address(index)} for index, id in enumerate(self.spec.ids)]
        content |= {"ring": ring, "plaintext": self.spec.plaintext or not self.certificates}
        content.pop("code", None)
        if any(":" in content[key]["name"] for key in ("protocol", "model", "data")):
            content["code"] = str(CODE)
        if "recording" in content:
            content["recording"] = str(DATA / "recording")
        content["data"] = {key: _inside(key, value) for key, value in content["data"].items()}
        return content

    def _peer(self, id: str) -> Mapping[str, Any]:
        content: dict[str, Any] = {"federation": "federation.yaml", "id": id, "listen": f"0.0.0.0:{PEER_PORT}"}
        content |= {"health": f"0.0.0.0:{HEALTH_PORT}", "out": str(RUNS / id)}
        if self.certificates:
            content |= {"tls": {what: str(TLS / f"{what}.pem") for what in ("ca", "cert", "key")}}
        return content


def _inside(key: str, value: Any) -> Any:
    """Where data lie in a pod: a directory as the volume's root, a file in it."""
    if key == "root":
        return str(DATA)
    return str(DATA / Path(value).name) if key == "path" else value
