"""Runs in the pod that sees the volume of a run: prints what is in the peers' files, one JSON object per line.

It is sent there by standard input, with a call appended. Only the standard library, and nothing of this package.
"""

import base64
import json
import os
import time

POLL_INTERVAL_S = 0.5
CHUNK_BYTES = 1 << 18
"""The most bytes of a file in one line."""


def follow(offsets: dict[str, int]) -> None:
    """Send what is added to these files, until the connection ends; `{}` after every scan of all of them."""
    while True:
        for path in offsets:
            offsets[path] = send_from(path, offsets[path])
        send({})
        time.sleep(POLL_INTERVAL_S)  # the standard library cannot watch a file for changes


def fetch(wanted: list[str]) -> None:
    """Send these files whole, as far as they are there."""
    for path in wanted:
        if os.path.isfile(path):
            send({"file": path, "size": send_from(path, 0)})
    send({"over": True})


def send_from(path: str, offset: int) -> int:
    """Send what the file has from `offset` on, or all of it if it was begun anew. Return how far that is."""
    if not os.path.exists(path):
        return offset
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < offset:
            offset = 0
        file.seek(offset)
        while data := file.read(CHUNK_BYTES):
            send({"file": path, "at": offset, "data": base64.b64encode(data).decode()})
            offset += len(data)
    return offset


def send(notice: dict[str, object]) -> None:
    print(json.dumps(notice), flush=True)
