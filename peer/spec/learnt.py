"""Does each phase of a federation's training have something to learn?"""

from peer.errors import InputError
from peer.learning.model.model import Model
from peer.spec.federation import Spec


def check_learnt(spec: Spec, model: Model) -> None:
    """InputError with the way out where the part that a phase trains holds nothing that is learnt."""
    for phase in spec.protocol.local():
        if phase.epochs and not model.trainable(phase.part):
            raise InputError(
                f"`{spec.protocol.name}` trains the {phase.part}, and nothing in that of model {model.name} is learnt; "
                "freeze less of it, divide the model elsewhere, or choose another protocol"
            )
    if spec.finetune and not model.trainable(spec.finetune.part):
        raise InputError(
            f"`finetune` trains the {spec.finetune.part}, and nothing in that of model {model.name} is learnt; write "
            "`part: model`, or leave `finetune` out"
        )
