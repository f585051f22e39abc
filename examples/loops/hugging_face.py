"""A loop by a Hugging Face `Trainer`, for a model that gives logits. training: {loop: "hugging_face:hugging_face"}"""

import torch
from transformers import Trainer, TrainingArguments


class OurTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(inputs["x"])
        loss = self.loop.loss(outputs, inputs["labels"])
        return (loss, outputs) if return_outputs else loss


def collate(samples):
    return {"x": torch.stack([x for x, _ in samples]), "labels": torch.stack([y for _, y in samples])}


def hugging_face(loop):
    arguments = TrainingArguments(
        num_train_epochs=loop.epochs,
        learning_rate=1e-3,
        per_device_train_batch_size=loop.batch_size,
        seed=loop.seed,
        use_cpu=loop.device.type == "cpu",
        dataloader_pin_memory=False,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        report_to=[],
    )
    trainer = OurTrainer(loop.model, arguments, train_dataset=loop.data, data_collator=collate)
    trainer.loop = loop
    return trainer.train().training_loss
