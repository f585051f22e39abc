"""A wheel of the dfl that runs here, however it was installed: from a checkout, from another wheel, or editable."""

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import launcher
import peer

WHEEL = "Wheel-Version: 1.0\nGenerator: dfl-launch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
MADE = (1980, 1, 1, 0, 0, 0)
"""The time of every file in it: the same code gives the same bytes."""


def build() -> tuple[str, bytes]:
    """Its file name and its content, as the specification of binary distributions has them (PyPA, wheel 1.0)."""
    version = distribution("dfl").version
    record, buffer = [], io.BytesIO()
    info = f"dfl-{version}.dist-info"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (*_packages(), *_about(info)):
            archive.writestr(zipfile.ZipInfo(name, MADE), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", MADE), "".join([*record, f"{info}/RECORD,,\n"]))
    return f"dfl-{version}-py3-none-any.whl", buffer.getvalue()


def _packages() -> Iterator[tuple[str, bytes]]:
    for package in (launcher, peer):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def _about(info: str) -> Iterator[tuple[str, bytes]]:
    yield f"{info}/WHEEL", WHEEL.encode()
    for name in ("METADATA", "entry_points.txt"):
        yield f"{info}/{name}", (distribution("dfl").read_text(name) or "").encode()
