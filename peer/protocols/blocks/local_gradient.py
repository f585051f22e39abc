"""The gradient of a peer's whole local loss, without a step."""

import torch
from torch import Tensor

from peer.learning.training.evaluation import BATCH
from peer.protocols.base import Peer


def local_gradient(peer: Peer) -> Tensor:
    """∇f_i(w): of the task's mean loss over all local samples, laid out as the model; 0 at what is not trainable.

    In evaluation mode: without dropout and with BatchNorm's running statistics it is a function of w and the data
    alone, however many samples are taken at a time. Long: call it inside `compute`.
    """
    vector = peer.model.detach().clone().requires_grad_()
    gradient = torch.zeros_like(vector, requires_grad=False)
    for inputs, targets, positions in peer.data.in_order(BATCH):
        loss = peer.task.loss(peer.logits(vector, inputs), targets)
        gradient.add_(torch.autograd.grad(loss, vector)[0], alpha=len(positions) / len(peer.data))
    return gradient
