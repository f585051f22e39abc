"""A loop by MONAI. training: {loop: "monai_loop:monai"}"""

from monai.engines import SupervisedTrainer
from torch.utils.data import DataLoader


def prepare_batch(batch, device=None, non_blocking=False, **_):
    return tuple(one.to(device, non_blocking=non_blocking) for one in batch)


def monai(loop):
    SupervisedTrainer(
        device=loop.device,
        max_epochs=loop.epochs,
        train_data_loader=DataLoader(loop.data, loop.batch_size, shuffle=True),
        network=loop.model,
        optimizer=loop.optimiser(),
        loss_function=loop.loss,
        prepare_batch=prepare_batch,
    ).run()
