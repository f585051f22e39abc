"""Runs in the pod that sees the volume of a run: tells what is in the peers' files, one JSON object a line.

Comes to it by its standard input, with a call behind it. Only the standard library, and nothing of this package.
"""

import base64
import json
import os
import time

LOOK = 0.5
"""Seconds between two looks at the files."""
CHUNK = 1 << 18
"""Bytes of a file in one line."""


def follow(offsets: dict[str, int]) -> None:
    """What is added to these files, for as long as somebody listens; `{}` after every look at all of them."""
    while True:
        for path in offsets:
            offsets[path] = tell(path, offsets[path])
        say({})
        time.sleep(LOOK)  # the standard library has nothing that tells of changes of a file


def bring(wanted: list[str]) -> None:
    """These files, and all in these directories, as far as they are there."""
    for path in wanted:
        names = sorted(os.listdir(path)) if os.path.isdir(path) else []
        for one in [f"{path}/{name}" for name in names] or [path]:
            if os.path.isfile(one):
                say({"file": one, "size": tell(one, 0)})
    say({"over": True})


def tell(path: str, offset: int) -> int:
    """Says what the file has from `offset` on, or all of it where it was begun anew; how far that is."""
    if not os.path.exists(path):
        return offset
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < offset:
            offset = 0
        file.seek(offset)
        while data := file.read(CHUNK):
            say({"file": path, "at": offset, "data": base64.b64encode(data).decode()})
            offset += len(data)
    return offset


def say(notice: dict[str, object]) -> None:
    print(json.dumps(notice), flush=True)
