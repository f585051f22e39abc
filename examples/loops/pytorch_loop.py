"""A loop by PyTorch alone, with an optimiser of its own. training: {loop: "pytorch_loop:plain"}"""

import torch
from torch.utils.data import DataLoader


def plain(loop):
    optimiser = torch.optim.AdamW(loop.model.parameters(), lr=1e-3)
    loop.keep(optimiser)
    total = 0.0
    for _ in range(loop.epochs):
        for inputs, targets in DataLoader(loop.data, loop.batch_size, shuffle=True):
            optimiser.zero_grad()
            loss = loop.loss(loop.model(inputs), targets)
            loss.backward()
            optimiser.step()
            total += loss.item() * len(targets)
    return total / (loop.epochs * len(loop.data))
