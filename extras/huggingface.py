"""Train a Hugging Face model: `task: {huggingface: {model: FOLDER, train: notes.jsonl, ...}}`.

What one writes there becomes the blocks `task`, `model` and `data` (`HuggingFace.blocks`), whose functions are below:
`read` makes token ids of texts, `network` the model, and `save_pretrained` what `from_pretrained` opens of a peer's
model in the end. All take the same folder, as `save_pretrained` writes one: configuration, tokenizer and, unless the
weights are to be drawn from the federation's seed, weights. Nothing is ever downloaded.

Texts are int64 (n, max_length), and -1 from where they are over. The model makes the attention mask of that, and pads
a batch no further than to its longest text.
"""

import csv
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from peer import load_model
from peer.errors import InputError, optional
from peer.learning.export import state_dict
from peer.learning.tasks import Classification, LanguageModel
from peer.learning.vision import torchvision
from peer.plugins import Preset
from peer.settings import Settings, names_peers
from peer.spec.recordings import RUN
from peer.telemetry.results import MODEL, RESULT

OVER = -1
"""Stands in the place of a token where a text is over."""
IGNORED = -100
"""The target of a place that has no next token."""
PARTS = {
    "config": ("config.json",),
    "tokenizer": (
        "tokenizer*",
        "vocab.*",
        "merges.txt",
        "*.codes",
        "added_tokens.json",
        "special_tokens_map.json",
        "*.model",
    ),
    "weights": ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json"),
}
"""The files of a model's folder in which peers must not differ."""


class Classes(Classification):
    """One class a text."""

    name: str  # type: ignore[assignment]
    inputs: ClassVar[Literal["float32", "int64"]] = "int64"
    evaluation_batch: ClassVar[int] = 32


class NextToken(LanguageModel):
    """The next token at each place."""

    name: str  # type: ignore[assignment]
    evaluation_batch: ClassVar[int] = 8


class Lora(Settings):
    """Adapters of low rank, by PEFT."""

    r: int = Field(default=8, ge=1)
    alpha: float = Field(default=16, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: tuple[str, ...] = ()
    """Names of the layers that get one; by default those that PEFT knows for this kind of model."""


class HuggingFace(Preset):
    """Fine-tunes a model of `transformers` on texts: with `label` to classify them, else to predict the next token."""

    model: str
    """Its folder, or the config.json in one without weights; the tokenizer lies there, too."""
    train: str
    """JSON lines, CSV, or a folder of `datasets`; `{id}` in it stands for the peer's id."""
    test: str | None = None
    """Another such file; by default the share `holdout` of `data` is held out."""
    text: str = "text"
    label: str | None = None
    """The column of the classes."""
    labels: tuple[str | bool | int, ...] = ()
    """Their names in order; by default those in `train`, sorted."""
    max_length: int | None = Field(default=None, ge=2)
    """Tokens after which a text is cut off; by default 128, or as many as the model takes."""
    adapter: Literal["lora"] | Lora | None = None
    """None: all weights are trained."""
    group: str | None = None
    """The column of what is held out as a whole, such as a patient."""
    judged_by: tuple[str, ...] = ()
    class_weights: tuple[float, ...] = ()
    focal: float | None = None

    def blocks(self, folder: Path) -> Mapping[str, Any]:
        here, train = _model_folder(folder / Path(self.model).expanduser()), folder / Path(self.train).expanduser()
        labels = [*map(_label, self.labels)] or self._found_labels(train)
        digests = {part: _digest(here, part) for part in PARTS if _files(here, part)}
        if self.label and len({*labels}) < max(2, len(labels)):
            raise InputError(f"the labels must be two or more, each once, not {', '.join(labels)}; see `labels`")
        if self.adapter and "weights" not in digests:
            raise InputError(
                f"{here}: has no weights, and an `adapter` is for those of a model; leave it out, or add them"
            )
        network: dict[str, Any] = {"path": str(here), "digests": digests, "labels": labels}
        if self.adapter:
            network["adapter"] = (Lora() if self.adapter == "lora" else self.adapter).model_dump(mode="json")
        texts: dict[str, Any] = {"path": str(here), "text": self.text, "label": self.label, "labels": labels}
        texts |= {"max_length": self._length(here), "test": self._test(folder, train), "group": self.group}
        data: dict[str, Any] = {"name": f"{__name__}:read", "root": str(train), "options": texts}
        return {
            "task": self._task(here),
            "model": {"name": f"{__name__}:network", "head": [], "options": network},
            "data": data | ({"classes": len(labels)} if labels else {}),
        }

    def _length(self, here: Path) -> int:
        config = _config(here)
        most = next(
            (config[key] for key in ("max_position_embeddings", "n_positions", "max_seq_len") if key in config), None
        )
        if most is not None and self.max_length is not None and self.max_length > most:
            raise InputError(f"`max_length` of `huggingface` is {self.max_length}, and {here} takes {most} tokens")
        return self.max_length or min(128, most or 128)

    def _task(self, here: Path) -> dict[str, Any]:
        judged = {"judged_by": [*self.judged_by], "class_weights": [*self.class_weights], "focal": self.focal}
        given = {key: value for key, value in judged.items() if value not in ([], None)}
        if self.label:
            return {"name": f"{__name__}:Classes", **given}
        if unfit := [*given, *(["labels"] if self.labels else [])]:
            raise InputError(f"`{unfit[0]}` of `huggingface` is for classes; name their column in `label`")
        if "vocab_size" not in (config := _config(here)):
            raise InputError(f"{here / 'config.json'}: has no `vocab_size`, so it is not a language model")
        return {"name": f"{__name__}:NextToken", "vocabulary": config["vocab_size"]}

    def _found_labels(self, train: Path) -> list[str]:
        if not self.label:
            return []
        if names_peers(train):
            raise InputError(
                "`labels` of `huggingface` is missing: each peer has a file of its own, and all must number the "
                "classes alike; list them, such as labels: [benign, malignant]"
            )
        found = {row.label for row in _rows(train, self.text, self.label)}
        return sorted(found, key=lambda one: (0, int(one), one) if one.isdecimal() else (1, 0, one))

    def _test(self, folder: Path, train: Path) -> str | None:
        """Where the test file lies, seen from the folder of the training file: each peer may have its own."""
        if self.test is None:
            return None
        if self.group:
            raise InputError(
                "`group` of `huggingface` says what is held out together; leave it out, as there is a `test`"
            )
        found = os.path.relpath(folder / Path(self.test).expanduser(), train.parent)
        if names_peers(Path(found)):
            raise InputError(
                f"`test` is {self.test} and `train` {self.train}; put a peer's two files into one folder, such as "
                "{id}/test.jsonl and {id}/train.jsonl"
            )
        return found


def read(
    root: Path,
    path: str,
    text: str,
    label: str | None,
    labels: Sequence[str],
    max_length: int,
    test: str | None = None,
    group: str | None = None,
) -> tuple[NDArray[Any], ...]:
    """Tokens (n, max_length) and targets of a file of texts, and of its test file, if there is one: classes (n,), or
    without `label` the next token at each place (n, max_length). With `group` that column, too, (n,)."""
    here, given, least = Path(path), list[NDArray[Any]](), 1 if label else 2
    for file in [root, *([root.parent / test] if test else [])]:
        rows = [*_rows(file, text, label, group)]
        if wrong := next((row for row in rows if label and row.label not in labels), None):
            raise InputError(f"{wrong.where}: `{label}` is `{wrong.label}`; the classes are {', '.join(labels)}")
        if max_length > (most := _tokenizer(here).model_max_length):
            raise InputError(f"`max_length` is {max_length}, and the tokenizer in {here} makes {most} tokens at most")
        x = tokens(here, [row.text for row in rows], max_length)
        if (short := (x != OVER).sum(1) < least).any():
            where = rows[int(short.argmax())].where
            raise InputError(f"{where}: `{text}` makes fewer than {least} tokens; leave it out")
        given += [x, np.array([labels.index(row.label) for row in rows], np.int64) if label else _next(x)]
    return (*given, np.array([row.group for row in rows])) if group else tuple(given)


def tokens(folder: str | Path, texts: Sequence[str], max_length: int) -> NDArray[np.int32]:
    """Texts as the model takes them, (n, max_length), by the tokenizer in a folder."""
    tokenizer = _tokenizer(_model_folder(Path(folder)))
    ids = np.full((len(texts), max_length), OVER, np.int32)
    if texts:
        for row, known in zip(ids, tokenizer([*texts], truncation=True, max_length=max_length).input_ids, strict=True):
            row[: len(known)] = known
    return ids


def _next(x: NDArray[Any]) -> NDArray[np.int64]:
    after = np.concatenate([x[:, 1:], np.full((len(x), 1), OVER, x.dtype)], 1).astype(np.int64)
    return np.where(after == OVER, IGNORED, after)


class Row(NamedTuple):
    where: str
    text: str
    label: str
    group: str


def _rows(file: Path, text: str, label: str | None, group: str | None = None) -> Iterator[Row]:
    """Each row of a file; InputError for one that lacks something."""
    for where, row in _raw(file):
        if None in row:
            raise InputError(f"{where}: has more cells than the first line; put texts with commas into quotes")
        for column in filter(None, (text, label, group)):
            if column not in row:
                raise InputError(f"{where}: has no column `{column}`, but {', '.join(map(str, row))}")
            if row[column] is None or not str(row[column]).strip():
                raise InputError(f"{where}: `{column}` is empty; fill it in or leave it out")
        if not isinstance(row[text], str):
            raise InputError(f"{where}: `{text}` is not text: {row[text]!r}")
        yield Row(where, row[text], _label(row[label]) if label else "", str(row[group]) if group else "")


def _label(given: Any) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)


def _raw(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every row with its place, in words."""
    if file.is_dir():
        yield from _of_datasets(file)
        return
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            if file.suffix == ".csv":
                csv.field_size_limit(2**31 - 1)  # a text may be longer than the usual 131,072 characters
                table = csv.DictReader(lines, strict=True)
                yield from ((f"{file}, line {table.line_num}", row) for row in table)
                return
            for number, line in enumerate(lines, 1):
                row = json.loads(line) if line.strip() else {}
                if not isinstance(row, dict):
                    raise InputError(f"{file}, line {number}: is not an object with the columns, {{...}}")
                if row:
                    yield f"{file}, line {number}", row
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; `train` and `test` are JSON lines, CSV or folders") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{file}, line {number}: is not valid JSON ({error}); write an object a line") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: is neither JSON lines nor CSV in UTF-8 ({error})") from None


def _of_datasets(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    library("transformers")  # and so without internet
    datasets = optional("datasets", f"{folder}, which is a folder,", "datasets", "datasets")
    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: is not a folder of `datasets` ({error}); write one by save_to_disk") from error
    if isinstance(found, Mapping):
        raise InputError(f"{folder}: has several parts; name one of {', '.join(str(folder / one) for one in found)}")
    named = {key: kind.names for key, kind in found.features.items() if isinstance(kind, datasets.ClassLabel)}
    for number, row in enumerate(found):
        # -1 stands for no label there.
        known = {key: dict(enumerate(names)).get(row[key]) for key, names in named.items()}
        yield f"{folder}, row {number}", row | known


class TextNetwork(nn.Module):
    """A model of `transformers` whose logits alone are wanted, with its tensors under the names that it gives them.

    fresh: the layers that the model's folder has no weights for.
    reads: makes tokens (n, T) of texts.
    """

    def __init__(self, inner: Any, pad: int, fresh: Sequence[str], reads: Callable[[Sequence[str]], Any]) -> None:
        super().__init__()
        for name, child in inner.named_children():
            self.add_module(name, child)
        for name, parameter in inner.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self._inner, self._pad, self.fresh, self._reads = (inner,), pad, fresh, reads
        read = [name for name, _ in inner.named_parameters() if ".lora_" not in name and not _within(name, fresh)]
        self.rebuilt_names = frozenset(read)
        self._quick = {"use_cache": False} if "use_cache" in signature(inner.forward).parameters else {}

    @property
    def inner(self) -> Any:
        return self._inner[0]

    @property
    def class_names(self) -> list[str]:
        return [*self.inner.config.id2label.values()]

    def read_inputs(self, path: Path, text: str = "text") -> NDArray[np.int32]:
        """Tokens (n, T) of a file of texts in that column, as `train` may be, for `dfl-launch predict`."""
        return np.asarray(self._reads([row.text for row in _rows(path, text, None)]), np.int32)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (n, T) → logits (n, classes), or (n, T, vocabulary) of a language model."""
        there = x != OVER
        traced = torch.jit.is_tracing() or torch.compiler.is_compiling()  # type: ignore[attr-defined, no-untyped-call]
        longest = x.shape[1] if traced else max(1, int(there.sum(1).max()))
        ids, mask = torch.where(there, x, self._pad)[:, :longest], there[:, :longest].long()
        self.inner.training = self.training
        logits: Tensor = self.inner(input_ids=ids, attention_mask=mask, **self._quick).logits
        return functional.pad(logits, (0, 0, 0, x.shape[1] - longest)) if logits.ndim == 3 else logits


def network(
    shape: tuple[int, ...],
    classes: int,
    path: str,
    digests: Mapping[str, str],
    labels: Sequence[str] = (),
    adapter: Mapping[str, Any] | None = None,
) -> TextNetwork:
    """The model in a folder, with its weights if it has some; a head for these labels, or a language model."""
    here = Path(path)
    _check(here, digests)
    transformers, tokenizer = library("transformers"), _tokenizer(here)
    config = transformers.AutoConfig.from_pretrained(here, local_files_only=True, trust_remote_code=False)
    kind = transformers.AutoModelForSequenceClassification if labels else transformers.AutoModelForCausalLM
    masked = transformers.AutoModelForMaskedLM._model_mapping
    both_ways = not labels and type(config) in masked and not getattr(config, "is_decoder", False)
    if both_ways or type(config) not in kind._model_mapping:
        does = "classifies texts" if labels else "predicts the next token"
        raise InputError(f"{here}: transformers has no model of type `{config.model_type}` that {does}; take another")
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    if pad is None:
        raise InputError(f"{here}: its tokenizer has no `pad_token` and no `eos_token`; set one, and save it again")
    if len(tokenizer) > (known := config.get_text_config().vocab_size):
        raise InputError(f"{here}: its tokenizer has {len(tokenizer)} tokens and its model {known}; they do not match")
    config.pad_token_id = pad
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    reads = partial(tokens, here, max_length=shape[0])
    if "weights" not in digests:
        return TextNetwork(kind.from_config(config, dtype=torch.float32), pad, [""], reads)
    made, told = kind.from_pretrained(
        here,
        config=config,
        local_files_only=True,
        trust_remote_code=False,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    lacking = [*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])]
    fresh = _heads(made) + sorted({name.rpartition(".")[0] for name in lacking if not _within(name, _heads(made))})
    if len(lacking) > len([*made.parameters()]) / 2:
        raise InputError(f"{here}: its weights are of another model: they lack {lacking[0]}, and more; copy them again")
    if tokenizer.pad_token_id is None:
        for layer in made.modules():
            if isinstance(layer, nn.Embedding) and layer.padding_idx == pad:
                layer.padding_idx = None  # the end of a text is learnt, though it pads as well
    if adapter:
        _adapt(made, Lora.model_validate(adapter), fresh, here)
    return TextNetwork(made, pad, fresh, reads)


def _heads(inner: Any) -> list[str]:
    """The layers on top of a classifier's base; none of a language model, whose last layer is the base's own."""
    if "SequenceClassification" not in type(inner).__name__:
        return []
    return [name for name, child in inner.named_children() if name != inner.base_model_prefix and [*child.parameters()]]


def _within(name: str, layers: Sequence[str]) -> bool:
    return any(not layer or f"{name}.".startswith(f"{layer}.") for layer in layers)


def _adapt(inner: Any, lora: Lora, fresh: Sequence[str], here: Path) -> None:
    """Add adapters, which alone ask for gradients, with the fresh layers."""
    peft = library("peft")
    config = peft.LoraConfig(
        task_type="SEQ_CLS" if _heads(inner) else "CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=[*lora.target_modules] or None,
        exclude_modules=[*fresh] or None,
    )
    try:
        with warnings.catch_warnings(action="ignore"):  # of what it changes by itself
            peft.inject_adapter_in_model(config, inner)
    except ValueError as error:
        layers = {name.rpartition(".")[2] for name, layer in inner.named_modules() if not [*layer.children()]}
        raise InputError(
            f"{here}: PEFT cannot adapt it ({error}); name layers, such as "
            f"adapter: {{target_modules: [NAME]}}; it has {', '.join(sorted(layers - {*fresh}))}"
        ) from error
    for name in fresh:
        inner.get_submodule(name).requires_grad_(True)


def _model_folder(path: Path) -> Path:
    """The folder that is meant; InputError unless it has what a model needs."""
    if "{" in str(path):
        raise InputError(f"`model` of `huggingface` is one for all peers, not {path}")
    folder = (path.parent if path.is_file() else path).resolve()
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}, and nothing is downloaded in a run; where there is internet: "
            f"hf download NAME --local-dir {folder.name}; then put that folder there"
        )
    if (folder / "adapter_config.json").is_file():
        raise InputError(f"{folder}: holds an adapter; merge it into the model and save that (`merge_and_unload`)")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: has no config.json; give a folder as `save_pretrained` writes it")
    if not _files(folder, "tokenizer"):
        raise InputError(
            f"{folder}: has no tokenizer, and nothing is downloaded in a run; where there is internet: "
            f'AutoTokenizer.from_pretrained("NAME").save_pretrained("{folder.name}"); then put its files there'
        )
    return folder


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: is not valid JSON ({error}); copy it again") from None
    return content if isinstance(content, dict) else {}


def _config(folder: Path) -> dict[str, Any]:
    """What config.json says of a text model, also of one that is a part."""
    content = _json(folder / "config.json")
    return {**content, **content.get("text_config", {})}


def _files(folder: Path, part: str) -> list[Path]:
    return sorted({path for pattern in PARTS[part] for path in folder.glob(pattern) if path.is_file()})


def _digest(folder: Path, part: str) -> str:
    whole = hashlib.sha256()
    for path in _files(folder, part):
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def _check(folder: Path, digests: Mapping[str, str]) -> None:
    """InputError unless the folder is the one from which these were."""
    _model_folder(folder)
    for part, wanted in digests.items():
        if (found := _digest(folder, part)) != wanted:
            raise InputError(
                f"{folder}: its {part} differs from the federation's (sha256:{found}, not {wanted}); copy the "
                "folder of the others"
            )


@cache
def _tokenizer(folder: Path) -> Any:
    try:
        return library("transformers").AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: its tokenizer cannot be read ({error}); save it again") from error


@cache
def library(name: str) -> Any:
    """`transformers` or `peft`, without internet and quiet; InputError where it is missing."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would not survive a fork
    with suppress(InputError):
        torchvision()  # it imports torchvision, which plainly fails where it is built for another torch
    found = {one: optional(one, "`task: {huggingface: ...}`", one, "transformers") for one in ("transformers", name)}
    found["transformers"].utils.logging.set_verbosity_error()
    found["transformers"].utils.logging.disable_progress_bar()
    return found[name]


def save_pretrained(peer_directory: Path, target: Path) -> None:
    """Write a peer's model as a folder that `from_pretrained` opens, or PEFT's where it has an adapter: with the
    tokenizer, and a card that tells how it came about."""
    path, told = peer_directory / MODEL, _json(peer_directory / RUN).get("spec", {})
    if told.get("model", {}).get("name") != f"{__name__}:network":
        raise InputError(f"{path}: is not a model of `task: {{huggingface: ...}}`; choose another format")
    options = told["model"]["options"]
    task = f"{__name__}:{'Classes' if options['labels'] else 'NextToken'}"
    model = load_model(path, user_model=f"{__name__}:network", user_task=task)
    assert isinstance(model.module, TextNetwork)
    inner, tensors, tokenizer = model.module.inner, state_dict(model), _tokenizer(Path(options["path"]))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    card = _card(peer_directory, told, tokenizer.pad_token_id)  # first: it fails without a result
    target.mkdir(parents=True, exist_ok=True)
    if "adapter" in options:
        config = inner.peft_config["default"]
        config.base_model_name_or_path, config.modules_to_save = options["path"], [*model.module.fresh] or None
        config.inference_mode, config.exclude_modules = True, None
        config.save_pretrained(target)
        learnt = {entry.name: tensors[entry.name] for entry in model.entries("model")}
        named = {f"base_model.model.{key.replace('.default.', '.')}": tensor for key, tensor in learnt.items()}
        save_file(named, target / "adapter_model.safetensors", {"format": "pt"})
    else:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of its own
            inner.save_pretrained(target, state_dict=tensors)
    tokenizer.save_pretrained(target)
    (target / "README.md").write_text(card, "utf-8")


CARD = """---
base_model: {base.name}
library_name: {library}
pipeline_tag: {purpose}
---

# {base.name}, fine-tuned by federated learning

The texts have stayed with the peers, which exchanged weights.

- federation: {spec[name]}, of {peers}; this is the model of {result[id]}, sha256:{result[model_sha256]}
- protocol: `{protocol}`, {result[rounds]} rounds
- training samples of this peer: {result[samples]}
- base model: `{base.name}`, {digests}
- adapter: `{adapter}`
- classes: {classes}
- versions: {versions}

| on test samples | this peer | mean of all | worst of all |
|---|---|---|---|
{figures}

```python
{imports}from transformers import {kind}

model = {kind}.from_pretrained("{opened}"{options}){adding}
```
"""


def _card(peer_directory: Path, spec: Mapping[str, Any], pad: int) -> str:
    """A model card, of the run's spec and results."""
    result, summary = _json(peer_directory / RESULT), peer_directory.parent / "summary.json"
    everyone = _json(summary).get("figures", {}) if summary.is_file() else {}
    options, here = spec["model"]["options"], "THIS FOLDER"
    labels, adapter, base = options["labels"], options.get("adapter"), Path(options["path"])

    def row(name: str, value: float | None) -> str:
        numbers = [value, *(everyone.get(name, {}).get(key) for key in ("mean", "worst"))]
        return f"| {name} | {' | '.join('none' if one is None else f'{one:.4f}' for one in numbers)} |"

    return CARD.format(
        base=base,
        library="peft" if adapter else "transformers",
        purpose="text-classification" if labels else "text-generation",
        spec=spec,
        peers=", ".join(member["id"] for member in spec["ring"]),
        result=result,
        protocol=json.dumps(spec["protocol"]),
        digests=", ".join(f"{part} sha256:{digest}" for part, digest in options["digests"].items()),
        adapter=json.dumps(adapter) if adapter else "none: all weights were trained",
        classes=", ".join(labels) or "none: it predicts the next token",
        versions=", ".join(f"{name} {version(name)}" for name in ("dfl", "torch", "transformers", "peft")),
        figures="\n".join(row(name, value) for name, value in result["figures"].items()),
        kind=f"AutoModelFor{'SequenceClassification' if labels else 'CausalLM'}",
        imports="import peft\n" if adapter else "",
        opened=base.name if adapter else here,
        options=f", id2label={dict(enumerate(labels))}, pad_token_id={pad}" if labels and adapter else "",
        adding=f'\nmodel = peft.PeftModel.from_pretrained(model, "{here}")' if adapter else "",
    )
