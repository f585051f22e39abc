"""Small studies, as their tests write them."""

import json
from pathlib import Path
from typing import Any

import pandas

BASE = {"rounds": 2, "peers": 3, "data": {"name": "digits", "limit": 200}, "final_evaluation": {"resamples": 100}}
SOLO = {"name": "solo", "like": "rdfl", "settings": {"epochs": 1}}
GRID = {"protocol": [{"name": "rdfl", "epochs": 1}, SOLO], "seed": [1, 2]}
OF_THIS_COMPUTATION = ["command", "seconds", "bytes_sent", "commit"]
RAISES = """
import os, time
from typing import Literal
from peer.protocols.solo import Solo

class Raises(Solo):
    name: Literal["mine:Raises"] = "mine:Raises"
    async def round(self, peer):
        raise ValueError("no more")
"""
"""Own code, as `mine.py`, whose cells fail."""


def written(place: Path, **keys: Any) -> Path:
    """A study's file with four cells, or as `keys` say."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "study.yaml").write_text(json.dumps({"name": "small", "base": BASE, "grid": GRID, **keys}))
    return place / "study.yaml"


def results(out: Path) -> pandas.DataFrame:
    return pandas.read_csv(out / "results.csv")
