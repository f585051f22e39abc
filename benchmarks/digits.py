"""A federation on scikit-learn's digits, and the arguments of the tables made of many."""

import argparse
import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peer.runtime.in_process import run_in_process
from peer.runtime.runtime import Runtime
from peer.spec.loading import load_spec

PEERS, ROUNDS = 5, 10


def federate(directory: Path, partition: Mapping[str, Any], data_seed: int = 42, **keys: Any) -> dict[str, Runtime]:
    """Five peers' ten rounds, in one process; their files are under `directory`/run."""
    data = {"name": "digits", "seed": data_seed, "partition": partition}
    path = directory / "federation.yaml"
    path.write_text(json.dumps({"rounds": ROUNDS, "model": {"name": "mlp"}, "data": data, **keys}))
    return asyncio.run(run_in_process(load_spec(path, peers=PEERS), directory / "run"))


def arguments(
    told: str | None, rows: Iterable[str], columns: Iterable[str], seeds: list[int]
) -> argparse.ArgumentParser:
    """A parser for the rows, columns and seeds of a table; by default all rows and columns."""
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[*rows], default=[*rows])
    parser.add_argument("--columns", nargs="+", choices=[*columns], default=[*columns])
    parser.add_argument("--seeds", nargs="+", type=int, default=seeds)
    return parser
