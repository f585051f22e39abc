"""dfl-launch: the arguments, and what becomes of errors."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from launcher.arguments import parser
from launcher.legible import make_legible
from launcher.output import Output
from peer.errors import FailedError, InputError
from peer.process import leaving_at_once


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 done, 1 failed, 2 wrong input, 129 hangup, 130 Ctrl-C, 143 SIGTERM."""
    with leaving_at_once():
        for stream in (sys.stdout, sys.stderr):
            make_legible(stream)
        tree = parser()
        if "_ARGCOMPLETE" in os.environ:  # set by a shell that asks how the line might go on
            from launcher.completion import complete

            complete(tree)
        code = outcome(tree.parse_args(argv))
        gc.freeze()  # or the interpreter walks over all of torch before it ends, for half a second and more
        return code


def outcome(arguments: argparse.Namespace) -> int:
    """The exit code, and what went wrong on stderr; with `--json` in the document, too."""
    output = Output(arguments.json, arguments.quiet)
    try:
        code: int = arguments.command(arguments, output)
        sys.stdout.flush()
    except InputError as error:
        return failed(output, str(error), 2)
    except BrokenPipeError:
        # Or the interpreter writes what is left into the pipe at its end, and fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        way_out = "; the same command resumes the run" if arguments.resumes else ""
        return failed(output, f"stopped, as nobody reads its output any more (`| head`?){way_out}", 1)
    except FailedError as error:
        return failed(output, str(error), 1)
    except OSError as error:
        return failed(output, f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        return 130
    return code


def failed(output: Output, message: str, code: int) -> int:
    output.failure(message, code)
    return code


if __name__ == "__main__":
    sys.exit(main())
