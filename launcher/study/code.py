"""Which code computes cells: what must be alike on two machines so that they come to the same bits."""

import hashlib
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from launcher.study.commit import commit

ROOT = Path(__file__).parents[2]
"""Where the packages `peer` and `launcher` are."""
PACKAGES = ("torch", "numpy", "distributed")
OWN = "dfl"


def code() -> dict[str, str]:
    """Versions by name; of dfl a digest of its own files, as a checkout and an installed one may be the same."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"Python": python, **{name: _version(name) for name in PACKAGES}, OWN: _digest(), "commit": commit() or ""}


def differing(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What another machine has that this one has not, in words; empty where all is alike."""
    said = [
        f"{name} {there.get(name) or 'missing'} where this machine has {here[name]}"
        for name in ("Python", *PACKAGES)
        if here[name] != there.get(name)
    ]
    if here[OWN] != there.get(OWN):
        commits = [one.get("commit") or "unknown" for one in (there, here)]
        said.append(f"other code of {OWN} (commit {commits[0]}, and here {commits[1]})")
    return ", ".join(said)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _digest() -> str:
    found = hashlib.sha256()
    for file in sorted(file for top in ("launcher", "peer") for file in (ROOT / top).rglob("*.py")):
        found.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()
