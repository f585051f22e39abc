"""What a person is told of the pods of a run."""

from collections.abc import Callable, Sequence

from launcher.engines.kubernetes.state import Pod


class Telling:
    """ids: the peers', by their places in the ring."""

    def __init__(self, say: Callable[[str], None], ids: Sequence[str]) -> None:
        self._say, self._ids = say, ids
        self._told = set[str]()

    def once(self, sentence: str, subject: str = "") -> None:
        """Unless it, or another of the same subject, has been said."""
        if (subject or sentence) not in self._told:
            self._told.add(subject or sentence)
            self._say(sentence)

    def pending(self, pods: Sequence[Pod]) -> None:
        """Why they wait; of several that wait for the same, one stands for all."""
        for pod in pods:
            if pod.pending:
                self.once(f"{self._name(pod)} waits: {pod.pending}", pod.pending)

    def failed(self, pod: Pod) -> None:
        hint = "; give it more with --option memory=4Gi" if pod.why == "OOMKilled" else ""
        self.once(f"{self._name(pod)}: the pod {pod.name} {pod.obituary}{hint}")

    def _name(self, pod: Pod) -> str:
        return "the pod for the results" if pod.index is None else self._ids[pod.index]
