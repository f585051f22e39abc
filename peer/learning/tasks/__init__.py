"""What a federation can train for, by name; a user's own task is `module:Name`."""

from peer.errors import InputError, nearest
from peer.learning.tasks.base import Figure, Task
from peer.learning.tasks.classification import Classification
from peer.learning.tasks.language_model import LanguageModel
from peer.learning.tasks.multilabel import Multilabel
from peer.learning.tasks.regression import Regression
from peer.learning.tasks.segmentation import Segmentation
from peer.overriding import load_class

__all__ = ["TASKS", "Classification", "Figure", "Task", "task_class"]

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "multilabel": Multilabel,
    "regression": Regression,
    "segmentation": Segmentation,
    "language-model": LanguageModel,
}

TAKEN = frozenset(
    {
        *("id", "peer", "state", "restarts", "round", "loss", "samples", "sent", "waits for", "trouble"),
        *("train", "communicate", "evaluate", "train/comm/eval", "matched", "global", "paper", "local"),
    }
)
"""What tables and summaries call something else, beside a figure."""


def task_class(name: str) -> type[Task]:
    """The class called `name`, or the user's `module:Name`; InputError when there is none."""
    if ":" not in name and name not in TASKS:
        raise InputError(f"unknown task `{name}`; {nearest(name, [*TASKS, 'module:Name'])}")
    if ":" not in name:
        return TASKS[name]
    found = load_class(name, Task)
    _check_figures(found, name)
    return found


def _check_figures(found: type[Task], name: str) -> None:
    """InputError unless tables and summaries can hold its figures beside their own."""
    figures = getattr(found, "figures", ())
    if not isinstance(figures, tuple) or not figures or not all(isinstance(one, Figure) for one in figures):
        raise InputError(f'`{name}` has no figures; write figures = (Figure("error", better="down"),)')
    if wrong := next((one for one in figures if one.better not in ("up", "down")), None):
        raise InputError(f"`{name}` has a figure `{wrong.name}` that is better {wrong.better!r}; write up or down")
    if found.inputs not in ("float32", "int64"):
        raise InputError(f"`inputs` of `{name}` is {found.inputs!r}; it is float32, or int64 for tokens")
    names = [one.name for one in figures]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise InputError(f"`{name}` has two figures that are called `{twice}`; give each its own name")
    if taken := next((one for one in names if one in TAKEN), None):
        raise InputError(f"`{name}` has a figure `{taken}`, which tables or summaries have already; rename it")
