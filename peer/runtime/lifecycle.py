"""A peer's life as a table of states, printable with `python -m peer.runtime.lifecycle`."""

from typing import Literal

State = Literal["joining", "ready", "training", "communicating", "evaluating", "serving", "done", "failed"]
TRANSITIONS: dict[State, tuple[State, ...]] = {
    "joining": ("ready", "serving", "failed"),
    "ready": ("training", "communicating", "evaluating", "failed"),
    "training": ("communicating", "evaluating", "failed"),
    "communicating": ("training", "evaluating", "failed"),
    "evaluating": ("communicating", "ready", "serving", "failed"),
    "serving": ("done", "failed"),
    "done": (),
    "failed": (),
}
MEANING: dict[State, str] = {
    "joining": "shaking hands with its neighbours",
    "ready": "at the start of a round, waiting until nobody is more than W rounds behind",
    "training": "training on its own samples",
    "communicating": "sending to its neighbours, waiting for theirs",
    "evaluating": "testing its model",
    "serving": "finished; keeps its messages until the neighbours have them on disk",
    "done": "over",
    "failed": "over, with a reason",
}


class Lifecycle:
    """The present state; a step that the table does not have is a programming error."""

    def __init__(self) -> None:
        self.state: State = "joining"

    def become(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a peer that is {self.state} cannot become {state}")
        self.state = state


if __name__ == "__main__":
    for state, following in TRANSITIONS.items():
        print(f"{state:14} {MEANING[state]:78} → {', '.join(following) or 'the end'}")
