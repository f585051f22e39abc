"""A loop by Accelerate. training: {loop: "accelerated:accelerated"}"""

from accelerate import Accelerator
from torch.utils.data import DataLoader


def accelerated(loop):
    accelerator = Accelerator(cpu=loop.device.type == "cpu")
    model, optimiser, batches = accelerator.prepare(
        loop.model, loop.optimiser(), DataLoader(loop.data, loop.batch_size, shuffle=True)
    )
    for _ in range(loop.epochs):
        for inputs, targets in batches:
            optimiser.zero_grad()
            accelerator.backward(loop.loss(model(inputs), targets))
            optimiser.step()
