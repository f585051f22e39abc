"""Where a command's words and data go."""

import json
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from peer.text import one_line

if TYPE_CHECKING:
    from rich.console import Console


class Output:
    """Words for a person; and with `--json` one document for programs, which then has stdout to itself.

    With `--quiet` nobody is told anything but what went wrong.
    """

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._told = False

    @cached_property
    def console(self) -> "Console":
        """For words. That nobody reads them any more is a BrokenPipeError."""
        from rich.console import Console

        class Words(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        return Words(stderr=self.as_json, quiet=self.quiet, emoji=False)

    def say(self, *lines: str) -> None:
        """A line each, however wide the screen: what is longer can be copied in one piece."""
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def document(self, content: Mapping[str, Any] | list[Any]) -> None:
        """The one document."""
        self.text(json.dumps(content, indent=2) + "\n")

    def text(self, written: str) -> None:
        """The one document, as it is written already."""
        sys.stdout.write(written)
        self._told = True

    def failure(self, message: str, code: int) -> None:
        """In one line on stderr why the command ends with that code; in the document, too, if there is none yet."""
        print(f"dfl-launch: {one_line(message)}", file=sys.stderr)
        if self.as_json and not self._told:
            self.document({"error": one_line(message), "exit_code": code})
