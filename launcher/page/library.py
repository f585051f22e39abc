"""Vega, Vega-Lite and their charts' interpreter as one script that a page holds; and charts as files.

The script is made by vl-convert, in some seconds, and kept in the user's cache.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from typing import Any

from peer.errors import FailedError, InputError
from peer.files import write_atomically
from peer.reading import RECORDS, read_plain
from peer.text import one_line

SCALE = 2.0
"""Pixels of a PNG for each of a chart's."""
WAY_OUT = "the report's charts need vl-convert; install it with: pip install -c constraints.txt 'dfl[report]'"


def check() -> None:
    """InputError where the package is missing that makes the charts."""
    try:
        version("vl-convert-python")
    except PackageNotFoundError:
        raise InputError(WAY_OUT) from None


def library() -> str:
    """As a JavaScript module that sets `window.vegaEmbed`; InputError where it cannot be made."""
    check()
    kept = _cache() / f"drawing-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        digest, _, script = read_plain(kept, RECORDS).partition(b"\n")
        if digest == _digest(script):
            return script.decode()
    import vl_convert

    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with suppress(OSError, FailedError):  # no home, or none that can be written to: then it is made again
        kept.parent.mkdir(parents=True, exist_ok=True)
        own = kept.with_name(f"{kept.name}.{token_hex(8)}")  # two may make it at once
        write_atomically(own, _digest(text.encode()) + b"\n" + text.encode())
        own.replace(kept)
    return text


def _digest(script: bytes) -> bytes:
    return sha256(script).hexdigest().encode()


def _cache() -> Path:
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dfl"
    return Path("/nonexistent")


def picture(chart: Mapping[str, Any], look: Mapping[str, Any], kind: str) -> bytes:
    """A chart as "png" or "svg"; FailedError where it cannot be one."""
    import vl_convert

    whole = chart if {"facet", "hconcat"} & chart.keys() else _sized(chart)
    content = json.dumps({"$schema": SCHEMA, **whole}, ensure_ascii=False)
    text = content.encode(errors="replace").decode()  # half of a surrogate pair is no text
    try:
        if kind == "svg":
            return vl_convert.vegalite_to_svg(text, config=dict(look)).encode()
        return vl_convert.vegalite_to_png(text, config=dict(look), scale=SCALE)
    except ValueError as error:
        raise FailedError(f"a chart cannot be made a picture: {one_line(error)}") from error


def _sized(chart: Mapping[str, Any]) -> dict[str, Any]:
    width = chart.get("width", 640)
    return {
        "autosize": {"type": "fit", "contains": "padding"},
        **chart,
        "width": 640 if width == "container" else width,
    }


SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
