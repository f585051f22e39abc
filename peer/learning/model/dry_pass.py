"""Does a model fit the data? Found out by running it once on zeros, before anything else is done with it."""

import torch
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.randomness import global_stream
from peer.plugins import in_words


@torch.no_grad()
def dry_pass(module: nn.Module, name: str, shape: tuple[int, ...], classes: int) -> bool:
    """Run two zero samples through in evaluation and in training mode; whether training drew random numbers.

    Raises InputError naming the model, the input's shape and the reason if they do not come out as two rows
    of `classes` logits. Buffers and the random stream are left as they were; layers whose sizes follow the
    input (Lazy…) take them here.
    """
    zeros = torch.zeros(2, *shape)
    with global_stream(None):
        try:
            _check_logits(module.eval()(zeros), name, shape, classes)
            buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
            before = torch.get_rng_state()
            module.train()(zeros)
            draws = not torch.equal(before, torch.get_rng_state())
        except InputError:
            raise
        except Exception as error:  # a layer that the input does not suit, or a mistake in a user's `forward`
            raise InputError(f"model {name} does not take inputs of shape {shape}: {in_words(error)}") from error
    for buffer, value in buffers:
        buffer.copy_(value)
    return draws


def _check_logits(logits: object, name: str, shape: tuple[int, ...], classes: int) -> None:
    if not isinstance(logits, Tensor):
        raise InputError(f"model {name} must give one tensor of logits, not a {type(logits).__name__}")
    if logits.shape != (2, classes) or logits.dtype != torch.float32:
        raise InputError(
            f"model {name} must give {classes} float32 logits for an input of shape {shape}, "
            f"it gives {tuple(logits.shape[1:])} of {str(logits.dtype).removeprefix('torch.')}"
        )
