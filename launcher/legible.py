"""Text in the letters that a terminal or a pipe knows: `-` where there is no `–`, `e` where there is no `é`."""

import codecs
import io
import os
import sys
import unicodedata
from typing import IO

SIGNS = {"–": "-", "—": "-", "─": "-", "━": "=", "…": ".", "×": "x", "·": "-", "→": ">", "←": "<", "“": '"', "”": '"'}
"""A letter for a letter: columns stay where they are."""


def make_legible(stream: IO[str]) -> None:
    """Lets a text stream write anything; in plain letters on a terminal whose locale is C or POSIX.

    Python writes UTF-8 there, and a terminal that was told the same locale shows it as anything but text.
    """
    if isinstance(stream, io.TextIOWrapper):
        plain = stream.isatty() and in_plain_locale()
        stream.reconfigure(encoding="ascii" if plain else None, errors="legible")


def in_plain_locale() -> bool:
    """Whether the environment asks for no more than ASCII, and for no encoding of Python's own."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "C")
    chosen = os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8")
    return locale in ("C", "POSIX") and not chosen and sys.platform == "linux"


def _legible(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(map(_letter, unknown)), error.end


def _letter(character: str) -> str:
    plain = SIGNS.get(character) or unicodedata.normalize("NFKD", character)[0]
    return plain if plain.isascii() else "?"


codecs.register_error("legible", _legible)
