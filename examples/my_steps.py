"""Training steps of one's own, for training.yaml: see docs/training.md."""

import torch


def mixup(step, batch):
    order = torch.randperm(len(batch.targets), device=batch.targets.device)
    share = torch.rand((), device=batch.inputs.device)
    other = batch._replace(targets=batch.targets[order], positions=batch.positions[order])
    outputs = step(share * batch.inputs + (1 - share) * batch.inputs[order])
    return share * step.loss(outputs, batch) + (1 - share) * step.loss(outputs, other)


def sharpness_aware(step, batch, radius=0.05):
    loss = step.loss(step(batch.inputs), batch)
    loss.backward()
    with torch.no_grad():
        before = step.parameters.clone()
        step.parameters.add_(step.gradient, alpha=float(radius / step.gradient.norm().clamp(min=1e-12)))
        step.gradient.zero_()
    step.loss(step(batch.inputs), batch).backward()
    with torch.no_grad():
        step.parameters.copy_(before)
    return loss.detach()
