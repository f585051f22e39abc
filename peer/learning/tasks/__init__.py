"""What a federation can train for, by name; a user's own task is `module:Name`."""

from peer.errors import InputError, nearest
from peer.learning.tasks.base import Figure, Task
from peer.learning.tasks.classification import Classification
from peer.learning.tasks.language_model import LanguageModel
from peer.learning.tasks.multilabel import Multilabel
from peer.learning.tasks.regression import Regression
from peer.learning.tasks.segmentation import Segmentation
from peer.plugins import load_object

__all__ = ["TASKS", "Classification", "Figure", "Task", "task_class"]

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "multilabel": Multilabel,
    "regression": Regression,
    "segmentation": Segmentation,
    "language-model": LanguageModel,
}


def task_class(name: str) -> type[Task]:
    """The class called `name`, or the user's `module:Name`; InputError when there is none."""
    if ":" not in name and name not in TASKS:
        raise InputError(f"unknown task `{name}`; {nearest(name, [*TASKS, 'module:Name'])}")
    found = load_object(name) if ":" in name else TASKS[name]
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise InputError(f"`{name}` is not a subclass of peer.Task; write `class {name.partition(':')[2]}(Task)`")
    if missing := sorted(found.__abstractmethods__):
        raise InputError(f"`{name}` does not define {', '.join(f'`{method}`' for method in missing)}; add it")
    if not getattr(found, "figures", ()):
        raise InputError(f'`{name}` has no figures; write figures = (Figure("error", better="down"),)')
    return found
