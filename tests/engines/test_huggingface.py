"""Models of Hugging Face's transformers, trained by `task: {huggingface: ...}`, as real peers and as commands."""

import json
import re
import shutil
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.accidents import start_and_die
from hugging_face import write_models, write_notes
from real_peers import Build, SmallFederation, digests, until
from safetensors.torch import load_file
from torch import Tensor

from extras.huggingface import library, tokens
from launcher.cli import main
from peer import load_model
from peer.learning.export import save_model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build

if not find_spec("transformers") or not find_spec("peft"):
    pytest.skip("transformers: pip install -c constraints.txt 'dfl[transformers]'", allow_module_level=True)
pytestmark = pytest.mark.timeout(300)
FEDAVG = {"name": "fedavg", "epochs": 3, "lr": 0.01, "batch_size": 16}
ADAM = {"optimiser": {"name": "AdamW"}}
NOTES = ["patient acute rash", "patient reports mild chest pain for days with cough", "young"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hugging-face")
    write_models(folder)
    write_notes(folder / "notes.jsonl")
    return folder


def made(
    federation: Build,
    models: Path,
    name: str,
    peers: int = 2,
    protocol: Any = FEDAVG,
    head: Sequence[str] = (),
    **task: Any,
) -> SmallFederation:
    block = {"model": str(models / name), "train": str(models / "notes.jsonl"), "text": "note", **task}
    return federation(
        protocol,
        peers,
        task={"huggingface": block},
        model={"head": head},
        data={},
        training=ADAM,
        rounds=3,
        patience=60,
    )


def exported(one: SmallFederation) -> Path:
    """What `dfl-launch export` makes of peer0's model."""
    target = one.directory / "exported"
    assert main(["export", str(one.directory / "peer0"), "--to", str(target), "--format", "pretrained"]) == 0
    return target


def answers(one: SmallFederation, task: str, base: Path) -> tuple[Tensor, Any]:
    """What peer0's model says to NOTES; and NOTES as the tokenizer pads them."""
    path = one.directory / "peer0" / "model.safetensors"
    model = load_model(path, user_model="extras.huggingface:network", user_task=f"extras.huggingface:{task}")
    tokenizer = library("transformers").AutoTokenizer.from_pretrained(one.directory / "exported")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    x = torch.from_numpy(tokens(base, NOTES, model.shape[0]))
    assert len(model.predict(x)) == len(NOTES)
    with torch.no_grad():
        return model.forward(x), tokenizer(NOTES, padding=True, return_tensors="pt")


def test_adapters_of_a_classifier_train_alike_after_a_kill_and_peft_opens_them(federation: Build, models: Path) -> None:
    one = made(federation, models, "bert", 3, adapter="lora", label="diagnosis", judged_by=["auroc"])
    start_and_die(one, {"peer1": "training:8"})
    assert one.wait() == dict.fromkeys(one.ids, 0), one.account()
    results = one.results()
    assert digests(results) == one.undisturbed()
    assert results["peer0"]["figures"]["auroc"] > 0.9

    base = load_file(models / "bert" / "model.safetensors")
    for kept in (load_file(one.directory / id / "model.safetensors") for id in one.ids):
        assert all(".lora_" in name or name.startswith("classifier.") for name in kept)
        assert sum(tensor.numel() for tensor in kept.values()) < sum(tensor.numel() for tensor in base.values()) / 5

    target = exported(one)
    opened = library("transformers").AutoModelForSequenceClassification.from_pretrained(models / "bert", num_labels=2)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        opened = library("peft").PeftModel.from_pretrained(opened, target).eval()
    ours, padded = answers(one, "Classes", models / "bert")
    with torch.no_grad():
        assert torch.equal(opened(**padded).logits, ours)
    new, told = one.directory / "new.jsonl", one.directory / "answers.csv"
    new.write_text("".join(json.dumps({"note": note}) + "\n" for note in NOTES))
    line = ["predict", str(one.directory / "peer0"), str(new), "--to", str(told), "--option", "text=note"]
    assert main([*line, "--code", str(models)]) == 0
    rows = told.read_text().splitlines()
    assert rows[0] == "sample,answer,probability lung,probability skin"
    assert [row.split(",")[1] for row in rows[1:]] == [("lung", "skin")[one] for one in ours.argmax(1).tolist()]

    card = (target / "README.md").read_text()
    for told in (
        "lung, skin",
        "fedavg",
        results["peer0"]["model_sha256"],
        f"{results['peer0']['figures']['auroc']:.4f}",
    ):
        assert told in card


def test_a_language_model_trains_whole_and_from_pretrained_opens_it(federation: Build, models: Path) -> None:
    one = made(federation, models, "gpt2")
    assert 1 < one.run()["peer0"]["figures"]["perplexity"] < 20
    opened = library("transformers").AutoModelForCausalLM.from_pretrained(exported(one)).eval()
    ours, padded = answers(one, "NextToken", models / "gpt2")
    there = padded.attention_mask.bool()
    with torch.no_grad():
        theirs = opened(input_ids=padded.input_ids, attention_mask=padded.attention_mask).logits
    assert torch.equal(theirs[there], ours[:, : there.shape[1]][there])


def test_a_head_stays_at_home(federation: Build, models: Path) -> None:
    fedrep = {"name": "fedrep", "extractor_epochs": 1, "head_epochs": 1, "lr": 0.01}
    adapter = {"r": 4, "target_modules": ["c_attn"]}
    one = made(federation, models, "gpt2", protocol=fedrep, head=["score.*"], label="diagnosis", adapter=adapter)
    one.run()
    audit = [json.loads(line) for line in (one.directory / "peer0" / "audit.jsonl").read_text().splitlines()]
    sent = [entry for line in audit for entry in line["sent"]]
    assert sent
    assert not any(entry["head_bytes"] for entry in sent)


def test_a_site_with_another_tokenizer_is_refused_before_round_1(federation: Build, models: Path) -> None:
    one = made(federation, models, "bert", label="diagnosis", adapter="lora")
    other = one.directory / "other"
    shutil.copytree(models / "bert", other / "bert")
    tokenizer = (other / "bert" / "tokenizer.json").read_text()
    (other / "bert" / "tokenizer.json").write_text(tokenizer.replace('"fever"', '"fiever"'))
    spec = json.loads((one.directory / "federation.yaml").read_text())
    spec["task"]["huggingface"]["model"] = "bert"
    (other / "federation.yaml").write_text(json.dumps(spec))
    one.configure("peer1", federation="other/federation.yaml")
    one.start()
    for id in one.ids:
        until(lambda id=id: "`model.options.digests.tokenizer`" in one.log(id), 30, f"{id} hears in what it differs")
        assert not one.events(id, "round")


def test_weights_drawn_from_the_seed_and_files_of_each_peer(federation: Build, models: Path) -> None:
    for number, id in enumerate(("peer0", "peer1")):
        write_notes(models / "sites" / id / "train.jsonl", 40, number)
        write_notes(models / "sites" / id / "test.jsonl", 20, 10 + number)
    files = {part: str(models / "sites" / "{id}" / f"{part}.jsonl") for part in ("train", "test")}
    one = made(federation, models, "blank", label="diagnosis", labels=["skin", "lung"], **files)
    results = one.run()
    assert [result["samples"] for result in results.values()] == [40, 40]
    assert digests(results) == one.undisturbed()


@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_other_formats_answer_as_the_model(federation: Build, models: Path) -> None:
    one = made(federation, models, "blank", label="diagnosis")
    shape = (one.spec.data.options["max_length"],)  # type: ignore[attr-defined]
    model = build(one.spec.model, Example.zeros(shape, 2, one.spec.task), seed=1)
    save_model(model, one.directory / "model.safetensors")
    x = torch.from_numpy(tokens(models / "blank", NOTES, *shape)).long()
    model.train(False)
    with torch.no_grad():
        wanted = model.forward(x)
    for format, found in (("torchscript", opened_torchscript), ("onnx", opened_onnx)):
        target = str(one.directory / format)
        assert main(["export", str(one.directory), "--code", ".", "--to", target, "--format", format]) == 0
        torch.testing.assert_close(found(target, x), wanted)


def opened_torchscript(path: str, x: Tensor) -> Tensor:
    answer: Tensor = torch.jit.load(path)(x)  # type: ignore[no-untyped-call]
    return answer.detach()


def opened_onnx(path: str, x: Tensor) -> Tensor:
    reference = pytest.importorskip("onnx.reference")
    return torch.from_numpy(reference.ReferenceEvaluator(path).run(None, {"x": x.numpy()})[0])


def test_check_of_a_folder_of_datasets(federation: Build, models: Path) -> None:
    datasets = pytest.importorskip("datasets")
    found = datasets.load_dataset("json", data_files=str(models / "notes.jsonl"), split="train")
    found.class_encode_column("diagnosis").save_to_disk(str(models / "saved"))
    one = made(federation, models, "bert", label="diagnosis", group="ward", train=str(models / "saved"))
    data = one.spec.data.load(one.spec.task)
    assert data.groups is not None
    assert [len({*numbers}) for numbers in (data.groups, data.train_targets, data.parts["test"].targets)] == [9, 2, 2]
    assert one.spec.data.options["labels"] == ["lung", "skin"]  # type: ignore[attr-defined]
    assert main(["check", str(one.directory / "federation.yaml"), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("name", "changes", "task", "told"),
    [
        ("bert", {}, {"adapter": {"target_modules": ["qury"]}}, "PEFT cannot adapt it .* it has .*query"),
        ("bert", {"tokenizer_config.json": {"pad_token": None}}, {}, "no `pad_token` and no `eos_token`"),
        ("bert", {"config.json": {"model_type": "vit"}}, {}, "no model of type `vit` that classifies texts"),
        ("bert", {"config.json": {"vocab_size": 9}}, {}, "its tokenizer has 23 tokens and its model 9"),
        ("bert", {"tokenizer_config.json": {"model_max_length": 8}}, {}, "`max_length` is 32, and the tokenizer"),
    ],
)
def test_what_cannot_be_trained_is_told_in_a_sentence(
    name: str,
    changes: dict[str, dict[str, Any]],
    task: dict[str, Any],
    told: str,
    federation: Build,
    models: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(models / name, tmp_path / "models" / name)
    shutil.copy(models / "notes.jsonl", tmp_path / "models")
    for file, keys in changes.items():
        path = tmp_path / "models" / name / file
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    one = made(federation, tmp_path / "models", name, label="diagnosis", **task)
    assert main(["check", str(one.directory / "federation.yaml"), "--quiet"]) == 2
    assert re.search(told, capfd.readouterr().err)
