"""A task of a Slurm job, one for every peer. Only the standard library until a peer has failed: each of them waits for
its imports.

    python -P slurm_task.py address DIR FIRST_PORT    '{"n1": "10.0.0.1", ...}' in the environment's DFL_NODES

Before the peers start: finds a port on its node, and holds it until all have found one. Prints one line of JSON: its
rank, its node, `host:port` for the others and the address to listen at.

    python -P slurm_task.py peer DIR RESTARTS ID...   the one whose place in the list is the task's rank

Runs the peer, restarts it after a crash, at most RESTARTS times in a row without a completed round, and writes the last
exit code into a file.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

LAST_PORT = 65_535


def main() -> int:
    what, directory, number, *ids = sys.argv[1:]
    rank = int(os.environ["SLURM_PROCID"])
    if what == "address":
        return find_address(Path(directory), int(number), rank)
    return run_peer(Path(directory), ids[rank], int(number))


def run_peer(directory: Path, id: str, restarts: int) -> int:
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda told, _: stops.append(told))
    command = [sys.executable, "-P", "-m", "peer.cli", "--config", str(directory / f"{id}.yaml"), "--quiet"]
    log = os.open(directory / id / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    code, in_row, completed, goes_on = 128 + signal.SIGTERM, 0, 0, False
    while not stops:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as peer:
            # Slurm signals all processes of a task, so the peer too, but perhaps not one that had only just begun.
            if stops:
                peer.send_signal(stops[0])
            code = peer.wait()
        if code == 0 or stops:
            break
        from launcher.engines.programs.slurm_job import PeerRestarts
        from launcher.run_files import RunFiles
        from peer.process import exit_words

        crashes, before = PeerRestarts(RunFiles(directory), id), completed
        completed = crashes.completed
        in_row = in_row + 1 if completed == before else 1
        if in_row > restarts or not crashes.may_help(code):
            goes_on = not crashes.ends_others(code)
            break
        crashes.add()
        print(f"{id} {exit_words(code)}; restarted in the job ({in_row} of {restarts} in a row)", flush=True)
    path = directory / ".job" / "exit" / id
    beside = path.with_name(f".{id}.part")  # the file is whole or not there
    beside.write_text(str(code))
    beside.replace(path)
    if goes_on:  # the step, with the others
        return 0
    return code if code >= 0 else 128 - code


def find_address(directory: Path, first: int, rank: int) -> int:
    node = os.environ["SLURMD_NODENAME"]
    host = json.loads(os.environ["DFL_NODES"])[node]
    if not (directory / "federation.yaml").exists():
        sys.exit(f"{directory} is not on {node}: choose a directory that all nodes share, with --out")
    with listener(host, first) as held:
        port = held.getsockname()[1]
        bracketed = f"[{host}]" if ":" in host else host
        everywhere = "[::]" if held.family == socket.AF_INET6 else "0.0.0.0"
        found = {"rank": rank, "node": node, "address": f"{bracketed}:{port}", "listen": f"{everywhere}:{port}"}
        print(json.dumps(found), flush=True)
        sys.stdin.read()  # ends when all tasks have found theirs
    return 0


def listener(host: str, first: int) -> socket.socket:
    """Listen at the first free port from `first` on.

    At all addresses of the node, as its name may stand for loopback on the node itself.
    """
    family = socket.getaddrinfo(host, first, type=socket.SOCK_STREAM)[0][0]
    for port in range(first, LAST_PORT + 1):
        with suppress(OSError):  # it listens at once, or another could bind as well
            return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
    sys.exit(f"no port from {first} on is free")


if __name__ == "__main__":
    sys.exit(main())
