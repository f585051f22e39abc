"""All benchmarks, one after the other, each in a process of its own: `python -m benchmarks`, or `make bench`."""

import argparse
import subprocess
import sys
import time

from benchmarks.measure import machine

ALL = ("links", "epoch", "federation", "checkpoints", "startup", "gpu")


def main() -> int:
    """0 when all ran; a missed bar is printed, not an error: figures of a busy machine say little."""
    argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__).parse_args()
    print(f"before: {machine()}")
    codes = []
    for name in ALL:
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        codes.append(subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode)
        print(f"({time.monotonic() - began:.0f} s)", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
