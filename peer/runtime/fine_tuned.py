"""What a peer that has fine-tuned finds of it when it is started once more."""

from pathlib import Path

from peer.errors import InputError
from peer.learning.model.digests import content_sha256
from peer.learning.model.model import Model
from peer.learning.model.weight_files import opened
from peer.spec.federation import Spec
from peer.spec.run import Run
from peer.telemetry.results import MODEL, RESULT, read_result


def take_fine_tuned(model: Model, out: Path, rounds: int) -> bool:
    """Whether a fine-tuned model of so many rounds and its result are whole in `out`: then `model` becomes that one."""
    result = read_result(out)
    if result is None or result.before_finetuning is None or result.rounds != rounds:
        return False
    try:
        with opened(out / MODEL) as stored:
            tensors = {name: one.read() for name, one in stored.items()}
        if content_sha256(tensors) != result.model_sha256:
            return False
        model.load(tensors)
    except InputError:
        return False
    return True


def forget_other(out: Path, spec: Spec) -> None:
    """Remove a result that was fine-tuned by other settings, or by none, before run.json says that it was by these."""
    try:
        theirs = Run.read(out).digests.get("finetune")
    except (OSError, ValueError):
        return
    if theirs != spec.digests().get("finetune"):
        (out / RESULT).unlink(missing_ok=True)
