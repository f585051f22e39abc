"""A task of a Slurm job: one peer, and a file with its exit code.

    python -P slurm_task.py DIR ID...     the one whose place in the list is the task's rank

Only the standard library: there is one of it beside every peer.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path


def main() -> int:
    directory, ids = Path(sys.argv[1]), sys.argv[2:]
    id = ids[int(os.environ["SLURM_PROCID"])]
    # Slurm sends a signal to all processes of a task, so the peer has it, too.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    command = [sys.executable, "-P", "-m", "peer.cli", "--config", str(directory / f"{id}.yaml"), "--quiet"]
    log = os.open(directory / id / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    code = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    write(directory / ".job" / "exit" / id, str(code))
    return code if code >= 0 else 128 - code


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text)
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
