"""A Python environment on a host, with dfl."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys

from launcher.engines.ssh.remote.files import absolute, own, read, write
from launcher.engines.ssh.remote.speech import Refused


def mark(directory: str) -> str:
    """What says that the environment is whole, and what is in it."""
    return os.path.join(directory, ".venv", ".dfl")


def contents(content: str, extras: list[str]) -> str:
    return f"{hashlib.sha256(content.encode()).hexdigest()} {' '.join(extras)}"


def installed(directory: str, content: str, extras: list[str]) -> bool:
    """Whether the environment holds that wheel; `content` is base64."""
    path = mark(absolute(directory))
    return os.path.exists(path) and read(path) == contents(content, extras)


def install(directory: str, name: str, content: str, extras: list[str]) -> None:
    """An environment with that wheel, which has the same version again after a change of the code."""
    root = absolute(directory)
    own(root)
    python, wheel = os.path.join(root, ".venv", "bin", "python"), os.path.join(root, name)
    with open(wheel, "wb") as file:
        file.write(base64.b64decode(content))
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    run(sys.executable, "-m", "venv", os.path.join(root, ".venv"))
    run(*pip, wheel + (f"[{','.join(extras)}]" if extras else ""))
    run(*pip, "--no-deps", "--force-reinstall", wheel)
    os.remove(wheel)
    write(mark(root), contents(content, extras), 0o600)


def run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise Refused(f"{' '.join(command[:4])}: {said[-1] if said else f'exit code {done.returncode}'}")
