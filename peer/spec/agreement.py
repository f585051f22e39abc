"""Of a spec what all peers must agree on, and its digests, by which a refusal names the keys that differ."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

ELSEWHERE = ("code", "recording", "metrics", "tensorboard", "tracker")
"""Keys of a spec in which peers may differ."""


def agreed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Of a spec's plain keys what peers must agree on; a key without a value is left out.

    Where code, data, recordings and a file of weights lie, how many workers read the data, and who is told how the
    training goes, is each machine's own business. Of the ring it is who belongs to it, and in which order: where each
    is reached may change during a run, and look different from another network; what data of its own a peer has, and
    where, is for it alone to know. That the data go together (inputs, classes, columns) is compared in the handshake by
    what they are.
    """
    data = {key: value for key, value in content["data"].items() if key not in ("root", "path", "download", "workers")}
    # What a file of weights comes to is compared by digest.
    model = {key: value for key, value in content["model"].items() if key != "weights"}
    kept = {key: value for key, value in content.items() if key not in ELSEWHERE and value is not None}
    return kept | {"data": data, "model": model, "ring": [member["id"] for member in content["ring"]]}


def digests(canonical: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of the JSON of every key that peers must agree on."""
    return {key: sha256(value) for key, value in canonical.items()}


def sha256(value: Any) -> str:
    """In hex, of its JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
