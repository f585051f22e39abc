"""A loop by Lightning. training: {loop: "lightning_loop:lightning"}"""

import pytorch_lightning
import torch
from torch.utils.data import DataLoader


class Module(pytorch_lightning.LightningModule):
    def __init__(self, loop):
        super().__init__()
        self.loop, self.model = loop, loop.model

    def training_step(self, batch, number):
        inputs, targets = batch
        loss = self.loop.loss(self.model(inputs), targets)
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.loop.lr)


def lightning(loop):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pytorch_lightning.Trainer(max_epochs=loop.epochs, accelerator=loop.device.type, **quiet)
    trainer.fit(Module(loop), DataLoader(loop.data, loop.batch_size, shuffle=True))
    return trainer.callback_metrics["loss"]
