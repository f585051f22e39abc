"""Which code computed a cell."""

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 10.0
"""Seconds for git to answer."""


def commit() -> str | None:
    """The checkout's commit, with `-dirty` where files differ from it; None where this is no checkout."""
    try:
        asked("ls-files", "--error-unmatch", Path(__file__).name)  # or it is some other repository's folder
        dirty = asked("status", "--porcelain", "--untracked-files=no")
        return asked("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return None


def asked(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(HERE), *words], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return done.stdout.strip()
