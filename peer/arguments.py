"""Command lines whose errors say what may have been meant."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from peer.errors import nearest

OPTION = re.compile(r"-[^\d.\s]\S*")
"""What argparse takes for an option, and never for a value: `--peers`, `-h`; but not `-1`."""


class Parser(argparse.ArgumentParser):
    """Names the nearest known command, option or choice where it is given another; it takes no abbreviations."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords, allow_abbrev=False)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = sys.argv[1:] if args is None else [*args]
        known = self._option_string_actions
        # Before argparse complains that what was meant is missing.
        if unknown := next((name for name in self._options(given) if name not in known), None):
            self.error(f"unknown option `{unknown}`; {nearest(unknown, [*known])}")
        return super().parse_known_args(given, namespace)

    def _options(self, given: Sequence[str]) -> Iterator[str]:
        """Without their values; what follows a command is for that command's own parser."""
        mine = takewhile(OPTION.match, given) if self._subparsers else takewhile(lambda word: word != "--", given)
        return (word.partition("=")[0] for word in mine if OPTION.fullmatch(word))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings) or str(action.metavar or action.dest).lower()
            hint = nearest(str(value), [*map(str, action.choices)])
            raise argparse.ArgumentError(None, f"unknown {what} `{value}`; {hint}")
