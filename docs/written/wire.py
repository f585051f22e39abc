"""The table of a frame's header."""

import re
import struct

from peer.network.wire.frames import HEADER

FIELDS = (
    "magic: `DFL2`",
    "number of the payload in the manifest",
    "number of scalars of the message",
    "view",
    "round",
    "step: which collective call of the round, and which step of it",
    "the collective and the names of its scalars: their xxh32",
    "number of this frame in the message, from 0",
    "where in the payload's vector the message begins, in bytes",
    "bytes of the whole message",
    "bytes after the header",
    "xxh3-64 of the header before it and of everything after it",
)
"""What the codec's header holds, in its order."""


def header() -> str:
    """A frame's header: one row a field, its place computed from the format that the codec packs by."""
    order, *codes = re.findall(r"<|\d*[a-zA-Z]", HEADER.format)
    fields = iter(FIELDS)
    rows, offset = ["| offset | size | |", "|---|---|---|"], 0
    for code in codes:
        size = struct.calcsize(order + code)
        rows.append(f"| {offset} | {size} | {'zeros' if code.endswith('x') else next(fields)} |")
        offset += size
    return "".join(f"{row}\n" for row in rows)
