"""A codec of a user's own: whole steps of the largest value, rounded at random so that their mean is right."""

import torch
from torch import Generator, Tensor

from peer import Codec


class Steps(Codec):
    """An int8 for each value, after the float32 that is one step (QSGD, Alistarh et al. 2017, by the largest)."""

    steps: int = 127

    def length(self, values: int) -> int:
        return 4 + values

    def encode(self, vector: Tensor, generator: Generator) -> Tensor:
        step = vector.abs().max().reshape(1) / self.steps
        drawn = torch.rand(vector.shape, generator=generator)
        steps = (vector / step.clamp(min=1e-30) + drawn).floor().clamp(-self.steps, self.steps)
        return torch.cat([step.view(torch.uint8), steps.to(torch.int8).view(torch.uint8)])

    def decode(self, content: Tensor, values: int) -> Tensor:
        return content[:4].clone().view(torch.float32) * content[4:].view(torch.int8)


class Marked(Steps):
    """Ends in 7; what ends otherwise cannot be decoded, each in another way."""

    def length(self, values: int) -> int:
        return super().length(values) + 1

    def encode(self, vector: Tensor, generator: Generator) -> Tensor:
        return torch.cat([super().encode(vector, generator), torch.tensor([7], dtype=torch.uint8)])

    def decode(self, content: Tensor, values: int) -> Tensor:
        match int(content[-1]):
            case 7:
                return super().decode(content[:-1], values)
            case 8:
                raise SystemExit(3)
            case 9:
                return torch.zeros(values + 1)
            case 10:
                return torch.full((values,), torch.nan)
            case _:
                raise ValueError("it does not end in 7")


class Forgetful(Steps):
    """Draws from torch's own generator, whose state nobody keeps."""

    def encode(self, vector: Tensor, generator: Generator) -> Tensor:
        return super().encode(vector, Generator().manual_seed(torch.seed() & 0xFFFF))


class Dividing(Steps):
    """Divides by the largest value, which may be 0."""

    def encode(self, vector: Tensor, generator: Generator) -> Tensor:
        step = vector.abs().max().reshape(1) / self.steps
        return torch.cat([step.view(torch.uint8), (vector / step).to(torch.int8).view(torch.uint8)])

    def decode(self, content: Tensor, values: int) -> Tensor:
        return super().decode(content, values) / content[:4].clone().view(torch.float32).sign()


class Drawing(Steps):
    """Adds noise to what arrived."""

    def decode(self, content: Tensor, values: int) -> Tensor:
        return super().decode(content, values) + torch.rand(values) / 100


class Upscaled(Steps):
    """Sends a quarter, four times as large: right on average, and further from each vector than nothing is."""

    def encode(self, vector: Tensor, generator: Generator) -> Tensor:
        return super().encode(4 * vector * (torch.rand(vector.shape, generator=generator) < 0.25), generator)


class Learnt(Steps):
    """Decodes by weights that could be trained."""

    def decode(self, content: Tensor, values: int) -> Tensor:
        return super().decode(content, values) * torch.nn.Parameter(torch.ones(1))


class Short(Steps):
    """Says another length than it gives."""

    def length(self, values: int) -> int:
        return values


class Picky(Steps):
    """Fails on bytes that it does not expect, in every way there is."""

    def decode(self, content: Tensor, values: int) -> Tensor:
        match int(content[4]) if values > 5 else 0:
            case 1:
                raise KeyError("no such step")
            case 2:
                raise SystemExit(3)
            case 3:
                return torch.zeros(values + 1)
            case 4:
                content.fill_(0)
                return torch.zeros(values, dtype=torch.float64)
            case _:
                return super().decode(content, values)
