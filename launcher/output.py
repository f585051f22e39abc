"""Where a command's words and data go, and in which letters.

Words are for a person; with `--json` one document for programs has stdout to itself. A terminal or a pipe that knows
ASCII only gets plain letters: `-` where there is no `–`, `e` where there is no `é`.
"""

import codecs
import io
import json
import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from peer.process import unwritable_output
from peer.text import one_line

if TYPE_CHECKING:
    from rich.console import Console


class Output:
    """Words for a person; and with `--json` one document for programs, which then has stdout to itself.

    With `--quiet` only errors are printed.
    """

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._told = False

    @cached_property
    def console(self) -> "Console":
        """The console for words; BrokenPipeError when they are no longer read."""
        from rich.console import Console

        class Words(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        made = Words(stderr=self.as_json, quiet=self.quiet, emoji=False)
        if not made.is_terminal:
            made.file = Unpadded(made.file)  # type: ignore[assignment]
        return made

    def say(self, *lines: str) -> None:
        """Print a line each. A terminal shows prose wrapped at words; what holds a path or code can be copied whole."""
        for line in lines:
            width = self.console.width if self.console.is_terminal and not COPIED.search(line) else len(line) + 1
            indent = line[: len(line) - len(line.lstrip())]
            text = textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def files(self, *paths: Path) -> None:
        """Print where files are, a line each; where the terminal can, a click opens them."""
        for path in paths:
            style = f"link {path.absolute().as_uri()}" if self.console.is_terminal else None
            self.console.print(str(path), style=style, markup=False, highlight=False, soft_wrap=True)

    def document(self, content: Mapping[str, Any] | list[Any]) -> None:
        """The one document."""
        self.text(json.dumps(content, indent=2) + "\n")

    def text(self, written: str) -> None:
        """The one document, as it is written already."""
        self._told = True
        sys.stdout.write(written)

    def failure(self, code: int, *problems: str) -> int:
        """Say on stderr, a line each, why the command ends with that code; as a document, too, if there is none. Return
        the code."""
        for problem in problems:
            print(f"dfl-launch: {one_line(problem)}", file=sys.stderr)
        if self.as_json and not self._told:
            try:
                self.document({"error": "; ".join(map(one_line, problems)), "exit_code": code})
                sys.stdout.flush()
            except OSError as error:
                unwritable_output(error)
        return code


class Unpadded:
    """A stream that is no terminal: without the spaces that fill the lines of a table."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


COPIED = re.compile("[/=`]")
PADDING = re.compile(" +(?=\n)")
ASCII_SIGNS = dict(zip("–—─━…×·→←“”▁▂▃▄▅▆▇█", '---=.x-><""_.,-=+*#', strict=True))
"""A letter for a letter: columns stay where they are."""


def make_legible(stream: IO[str]) -> None:
    """Let a text stream write anything; in plain letters on a terminal whose locale is C or POSIX.

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
    plain = ASCII_SIGNS.get(character) or unicodedata.normalize("NFKD", character)[0]
    return plain if plain.isascii() else "?"


codecs.register_error("legible", _legible)
