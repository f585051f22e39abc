"""What the engine refuses, as one sentence with the way out."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peer.errors import FailedError, InputError

BUILD = "docker build -f deploy/Dockerfile -t dfl ."
CLASHES = ("Pool overlaps", "address pools have been fully subnetted", "non-overlapping IPv4")
NO_GPU = ("could not select device driver", "nvidia-container-cli")


def docker_sdk() -> Any:
    """The imported SDK; InputError when it is not installed."""
    try:
        return importlib.import_module("docker")
    except ImportError as error:
        raise InputError(
            f"`--on docker` needs the Docker SDK, which cannot be imported here ({error}); install it with: "
            "pip install -c constraints.txt 'dfl[docker]'"
        ) from error


def connect() -> Any:
    """A client of this machine's engine; InputError where none answers, or where it is another machine's."""
    docker = docker_sdk()
    try:
        # One connection a peer for its log; a pool that is too small complains on stderr.
        client = docker.from_env(version="auto", timeout=120, max_pool_size=1000)
    except docker.errors.DockerException as error:
        raise InputError(_unreachable(str(error))) from None
    if not client.api.base_url.startswith("http+docker://"):
        raise InputError(
            "DOCKER_HOST is another machine, which cannot see the run's directory; unset it, or run dfl-launch there"
        )
    return client


def _unreachable(said: str) -> str:
    if "PermissionError" in said or "Permission denied" in said:
        return (
            "you may not use the Docker engine: its socket is closed to you; join the group that owns it "
            "(`sudo usermod -aG docker $USER`, then log in again)"
        )
    return (
        f"no Docker engine answers here ({_reason(said)}); start it (`sudo systemctl start docker`), or name its "
        "socket in DOCKER_HOST"
    )


def _reason(said: str) -> str:
    for part in ("No such file or directory", "Connection refused", "timed out", "Name or service not known"):
        if part in said:
            return part.lower()
    return said.rpartition(":")[2].strip(" ')\"")


@contextmanager
def refusals() -> Iterator[None]:
    """FailedError for what the engine refuses inside the block."""
    docker = docker_sdk()
    import requests

    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise FailedError(_no_image(error.explanation or str(error))) from None
    except docker.errors.APIError as error:
        raise FailedError(in_words(str(error.explanation or error))) from None
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise FailedError(f"the Docker engine does not answer any more ({_reason(str(error))})") from None


def no_image(name: str) -> str:
    return f"the Docker engine has no image `{name}`; build it with `{BUILD}`, or name another with --option image=NAME"


def _no_image(said: str) -> str:
    return no_image(said.rpartition(": ")[2])


def in_words(said: str) -> str:
    """What the engine said, and what to do about it where that is known."""
    if any(clash in said for clash in CLASHES):
        return (
            f"the run's network cannot be made: {said}; name addresses that are free with "
            "--option subnet=10.99.0.0/24, or remove old networks with `docker network prune`"
        )
    if any(words in said for words in NO_GPU):
        return f"the Docker engine cannot give a container a GPU ({said}); install the NVIDIA Container Toolkit"
    return f"the Docker engine refused: {said}"
