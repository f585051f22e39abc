"""A task of a Slurm job, before the peers start: finds a port on its node, and holds it until all have found one.

    python -P slurm_address.py DIR FIRST_PORT     '{"n1": "10.0.0.1", ...}' on the environment's DFL_NODES

Prints one line of JSON: its rank, `host:port` for the others and what to listen at. Only the standard library.
"""

import json
import os
import socket
import sys
from pathlib import Path

LAST_PORT = 65_535


def main() -> None:
    directory, first = Path(sys.argv[1]), int(sys.argv[2])
    node, rank = os.environ["SLURMD_NODENAME"], int(os.environ["SLURM_PROCID"])
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


def listener(host: str, first: int) -> socket.socket:
    """At the first free port from `first` on. A name may stand for loopback on its own node: all addresses."""
    family = socket.getaddrinfo(host, first, type=socket.SOCK_STREAM)[0][0]
    for port in range(first, LAST_PORT + 1):
        held = socket.socket(family)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections that are still closing
        try:
            held.bind(("", port))
            held.listen()  # or another could bind as well
        except OSError:
            held.close()
        else:
            return held
    sys.exit(f"no port from {first} on is free")


if __name__ == "__main__":
    main()
