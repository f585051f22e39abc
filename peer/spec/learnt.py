"""Do a model and a peer's data have what the protocol goes by?"""

import numpy as np
from numpy.typing import NDArray

from peer.errors import InputError
from peer.learning.model.model import Model
from peer.protocols.registry import suited
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


def check_mix(spec: Spec, mix: NDArray[np.float64], id: str) -> None:
    """InputError with the way out where a protocol goes by a peer's mix of targets and it is not known, (0,)."""
    if not len(mix) and any(record.size == "kinds" for record in spec.protocol.records):
        instead = suited(spec.task, len(spec.ids))
        raise InputError(
            f"`{spec.protocol.name}` goes by each peer's mix of targets, and that of {id} is not known: data of its "
            "own take `task: {name: regression, edges: [...]}`, and of a torch data set no targets are read before; "
            f"give these, or choose a protocol that does not go by it, such as {instead}"
        )
