"""All benchmarks, one after the other, each in a process of its own: `python -m benchmarks`, or `make bench`."""

import argparse
import os
import subprocess
import sys
import time

from benchmarks.measure import RENEW, machine

ALL = ("links", "epoch", "rounds", "means", "memory", "federation", "checkpoints", "startup", "gpu")


def main() -> int:
    """0 when all ran; a missed bar is printed, not an error: figures of a busy machine say little."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--renew", action="store_true", help="the ratios are the record from now on, with this commit")
    environment = os.environ | ({RENEW: "1"} if parser.parse_args().renew else {})
    print(f"before: {machine()}")
    codes = []
    for name in ALL:
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        codes.append(
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False, env=environment).returncode
        )
        print(f"({time.monotonic() - began:.0f} s)", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
