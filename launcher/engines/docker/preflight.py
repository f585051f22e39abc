"""What would make peers in containers of this machine refuse to start, found before anything is created."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.engines.base import Run
from launcher.engines.docker.errors import connect, docker_sdk, no_image, refusals
from launcher.engines.docker.settings import DockerSettings
from launcher.engines.local.preflight import check_certificates, check_resources, check_room
from launcher.plan import plan
from peer.errors import FailedError, InputError
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig, check_plaintext


def check(run: Run, settings: DockerSettings) -> None:
    """All of it; whether data and model go together, too. Raises InputError."""
    client = connect()
    try:
        check_image(client, settings.image)
        check_network(client, settings.network)
    except FailedError as error:
        raise InputError(str(error)) from None
    finally:
        client.close()
    check_ids(run.spec)
    check_device(run.device, settings)
    if not run.certs:
        check_plaintext(PeerConfig(federation=Path("federation.yaml"), id=run.spec.ids[0]), run.spec)
    check_certificates(run.spec, run.certs)
    check_resources(run.spec, run.files.path)
    check_room(plan(run.spec), run.files.path)


def check_image(client: Any, name: str) -> None:
    docker = docker_sdk()
    try:
        with refusals():
            client.images.get(name)
    except FailedError as error:
        missing = isinstance(error.__context__, docker.errors.ImageNotFound)
        raise InputError(no_image(name) if missing else str(error)) from None


def check_network(client: Any, name: str | None) -> None:
    with refusals():
        if name and not client.networks.list(names=[name]):
            raise InputError(f"the Docker engine has no network `{name}`; make it with `docker network create {name}`")


def check_ids(spec: Spec) -> None:
    """On the containers' network an id is a host's name."""
    for id in spec.ids:
        if id.isdigit() or len(id) > 63 or id.startswith("-") or id.endswith("-"):
            raise InputError(
                f"`{id}` cannot name a host, as a container needs it: a letter, at most 63 characters and no hyphen "
                "at either end; rename this peer"
            )


def check_device(device: str, settings: DockerSettings) -> None:
    """Whether `--device` is one that a peer's config can name, and the containers are given it."""
    try:
        PeerConfig(federation=Path("federation.yaml"), id="peer0", device=device)
    except ValidationError:
        raise InputError(f"--device {device}: choose auto, cpu, cuda or cuda:N") from None
    if device not in ("auto", "cpu") and settings.gpus is None:
        raise InputError(f"--device {device}: a container sees no GPU unless it is given one; add --option gpus=all")
