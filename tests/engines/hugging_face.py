"""Tiny models of transformers with random weights, tokenizers of 25 words, and notes to train them on."""

import json
import random
import warnings
from pathlib import Path

import torch

from extras.huggingface import library

WORDS = (
    "patient",
    "reports",
    "no",
    "fever",
    "cough",
    "rash",
    "pain",
    "acute",
    "chronic",
    "mild",
    "severe",
    "for",
    "days",
)
WORDS += ("old", "young", "with", "joint", "skin", "chest")


def write_notes(file: Path, count: int = 240, seed: int = 0) -> None:
    """JSON lines: of the skin if a rash is among the words, of the lung if a cough is."""
    drawn, kinds = random.Random(seed), {"skin": "rash", "lung": "cough"}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lines:
        for number in range(count):
            diagnosis = drawn.choice([*kinds])
            said = [word for word in drawn.choices(WORDS, k=drawn.randint(2, 9)) if word not in kinds.values()]
            note = " ".join(["patient", *said, kinds[diagnosis]])
            lines.write(json.dumps({"note": note, "diagnosis": diagnosis, "ward": f"ward {number % 12}"}) + "\n")


def write_models(folder: Path) -> None:
    """`bert` without a head, `blank` of the same kind without weights, and `gpt2`, whose tokenizer cannot pad."""
    transformers = library("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    def tokenizer(special: list[str], **named: str) -> object:
        known = {word: number for number, word in enumerate([*special, *WORDS])}
        made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        if "[CLS]" in special:
            ends = [("[CLS]", known["[CLS]"]), ("[SEP]", known["[SEP]"])]
            made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
        return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", **named)

    torch.manual_seed(0)
    bert = transformers.BertConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    gpt2 = transformers.GPT2Config(
        vocab_size=32, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    cutting = tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"], pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        transformers.BertModel(bert).save_pretrained(folder / "bert")
        transformers.GPT2LMHeadModel(gpt2).save_pretrained(folder / "gpt2")
    bert.save_pretrained(folder / "blank")
    for name in ("bert", "blank"):
        cutting.save_pretrained(folder / name)
    tokenizer(["<end>", "[UNK]"], eos_token="<end>").save_pretrained(folder / "gpt2")
