"""The errors a person can cause or must act on; each message is one sentence that says what to do."""

import difflib
from collections.abc import Sequence
from importlib import import_module
from typing import Any


class UserError(Exception):
    """An error for a person. Several arguments are several problems, which get a line each where there is room."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class InputError(UserError):
    """Wrong input: a config, data file, address or directory. The process exits with 2 and creates nothing."""


class NotNowError(InputError):
    """Certificates that are not valid yet, or no longer: the same start may succeed later. Exit 75."""


class FailedError(UserError):
    """The run cannot go on: a neighbour never came, the disk is full, the model diverged. Exit 1."""


class DivergedError(FailedError):
    """A peer's model is not finite any more, by its own training or by what its neighbours sent.

    by_others: False where the model was sound when the training began, and so no neighbour can be the reason.
    """

    def __init__(self, message: str, *, by_others: bool = True) -> None:
        super().__init__(message)
        self.by_others = by_others


class WrongMessageError(FailedError):
    """Other peers sent what none that runs the same code would send."""

    def __init__(self, message: str, *senders: str) -> None:
        super().__init__(message)
        self.senders = senders


class OwnLossError(FailedError):
    """A peer's model is not finite any more because of a user's loss; no training or neighbour is to blame."""


def suggest(word: str, known: Sequence[str], elsewhere: Sequence[str] = ()) -> str:
    """A hint for a misspelt word, or for one that has its meaning elsewhere."""
    by_lower_case = {one.lower(): one for one in known}
    # Where it has its meaning elsewhere, only a slip of the pen says that it belongs here.
    close = difflib.get_close_matches(word.lower(), by_lower_case, n=1, cutoff=0.8 if elsewhere else 0.5)
    meant = [f"`{by_lower_case[one]}`" for one in close] + [*elsewhere]
    return f"did you mean {' or '.join(meant)}?" if meant else f"known: {', '.join(sorted(known))}"


def optional(module: str, purpose: str, package: str, extra: str) -> Any:
    """A module of a package that is not always installed; InputError says what needs it, and with which extra of dfl it
    comes."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"{purpose} needs {package}, which cannot be imported here ({error}); install it with: "
            f"pip install -c constraints.txt 'dfl[{extra}]'"
        ) from error


def first_cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group that is no group itself."""
    error = errors.exceptions[0]
    return first_cause(error) if isinstance(error, BaseExceptionGroup) else error
