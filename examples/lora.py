"""A small transformer with LoRA adapters: only they are learnt together, and `lora.yaml` beside this file says how.

The base is frozen: it lies at every peer, the same, and never travels. Without a file of weights it is drawn by the
federation's seed; `python examples/lora.py base.safetensors` trains one on other text and writes it. PEFT is needed:
`pip install -c constraints.txt 'dfl[adapters]'`.
"""

import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from peer.errors import InputError
from peer.learning.vision import torchvision

MODULES = ("_pydecimal", "argparse", "tarfile", "typing")
OTHERS = ("inspect", "ssl", "turtle", "zipfile")
WORDS, LENGTH = 512, 16


def snippets(modules=MODULES, most=300):
    """Runs of 16 words from the source of the standard library, as numbers, and from which module each comes."""
    x, y = [], []
    for number, name in enumerate(modules):
        words = re.findall("[a-z]+", Path(find_spec(name).origin).read_text(encoding="utf-8").lower())
        numbers = np.array([crc32(word.encode()) % WORDS for word in words[: most * LENGTH]])
        runs = numbers[: len(numbers) // LENGTH * LENGTH].reshape(-1, LENGTH)
        x.append(runs)
        y.append(np.full(len(runs), number))
    order = np.random.default_rng(0).permutation(sum(map(len, y)))
    return np.concatenate(x)[order], np.concatenate(y)[order]


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (
            layer(x).view(n, length, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width)
        self.between, self.feed = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.back = nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.back(self.feed(self.between(x)))


class Transformer(nn.Module):
    """(n, length) numbers of words → (n, width): the mean over the words."""

    def __init__(self, length, width=32, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return self.norm(self.blocks(self.words(x.long()) + self.places(places))).mean(1)


def adapted(shape, classes, width=32, layers=2, rank=4):
    """The transformer with adapters, which alone ask for gradients, and a head."""
    with suppress(InputError):
        torchvision()  # PEFT's transformers imports it, which plainly fails where it is built for another torch
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError(f"PEFT is missing ({error}); pip install -c constraints.txt 'dfl[adapters]'") from error
    base = Transformer(shape[0], width, layers)
    lora = LoraConfig(r=rank, lora_alpha=4 * rank, target_modules=["query", "value", "back"])
    return inject_adapter_in_model(lora, base), nn.Linear(width, classes)


def pretrained(steps=100):
    """A base that has learnt to tell other modules from each other."""
    torch.manual_seed(0)
    x, y = (torch.from_numpy(array) for array in snippets(OTHERS))
    base, head = Transformer(LENGTH), nn.Linear(32, len(OTHERS))
    optimiser = torch.optim.Adam([*base.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        loss = functional.cross_entropy(head(base(x[batch])), y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return base


if __name__ == "__main__":
    save_file(pretrained().state_dict(), sys.argv[1])
