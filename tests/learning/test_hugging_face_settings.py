"""What `task: {huggingface: ...}` stands for, and what it refuses, without the library."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from extras.huggingface import HuggingFace, read
from peer.errors import InputError

NOTES = [{"note": "a rash", "of": "skin"}, {"note": "a cough", "of": "lung"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a model of which only names and sizes are looked at, and two notes."""
    (tmp_path / "bert").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "bert" / name).write_text(json.dumps({"vocab_size": 9, "max_position_embeddings": 64}))
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, NOTES)))
    return tmp_path


def blocks(folder: Path, **given: Any) -> dict[str, Any]:
    keys = {"model": "bert", "train": "notes.jsonl", "text": "note", "label": "of", **given}
    return dict(HuggingFace.model_validate(keys).blocks(folder))


def test_classes_are_the_labels_in_order(folder: Path) -> None:
    made = blocks(folder, judged_by=["auroc"], class_weights=[1, 20])
    assert made["task"] == {"name": "extras.huggingface:Classes", "judged_by": ["auroc"], "class_weights": [1, 20]}
    assert made["model"]["options"]["labels"] == ["lung", "skin"]
    assert (made["data"]["classes"], made["data"]["root"]) == (2, str(folder / "notes.jsonl"))
    assert made["data"]["options"]["max_length"] == 64
    assert made["model"]["options"]["digests"].keys() == {"config", "tokenizer"}


def test_numbers_are_ordered_as_numbers(folder: Path) -> None:
    (folder / "notes.csv").write_text("note,of\na,10\nb,9\nc,2\n")
    assert blocks(folder, train="notes.csv")["model"]["options"]["labels"] == ["2", "9", "10"]


def test_a_language_model_has_the_vocabulary_of_its_configuration(folder: Path) -> None:
    made = blocks(folder, label=None, model="bert/config.json")
    assert made["task"] == {"name": "extras.huggingface:NextToken", "vocabulary": 9}
    assert "classes" not in made["data"]


def test_a_tokenizer_has_a_digest_of_its_own(folder: Path) -> None:
    first = blocks(folder)["model"]["options"]["digests"]
    (folder / "bert" / "tokenizer.json").write_text("{}")
    second = blocks(folder)["model"]["options"]["digests"]
    assert first["config"] == second["config"]
    assert first["tokenizer"] != second["tokenizer"]


def test_each_peer_has_its_own_files(folder: Path) -> None:
    made = blocks(folder, train="{id}/notes.jsonl", test="{id}/test.jsonl", labels=["lung", "skin"])
    assert made["data"]["root"] == str(folder / "{id}" / "notes.jsonl")
    assert made["data"]["options"]["test"] == "test.jsonl"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"model": "bert-base-uncased"},
            "there is no folder .*/bert-base-uncased, and nothing is downloaded .*hf down",
        ),
        ({"train": "{id}.jsonl"}, "`labels` of `huggingface` is missing: each peer has a file of its own"),
        ({"train": "{id}.jsonl", "test": "{id}-2.jsonl", "labels": [1, 2]}, "put a peer's two files into one folder"),
        ({"text": "txt"}, r"notes.jsonl, line 1: has no column `txt`, but note, of"),
        ({"train": "none.csv"}, r"none.csv: No such file or directory; `train` and `test` are JSON lines"),
        ({"max_length": 65}, "`max_length` of `huggingface` is 65, and .* takes 64 tokens"),
        ({"group": "of", "test": "t.csv"}, "`group` of `huggingface` says what is held out together"),
        ({"adapter": "lora"}, "has no weights, and an `adapter` is for those of a model"),
        ({"labels": ["a", "a"]}, "two or more, each once, not a, a"),
        ({"label": None, "judged_by": ["f1"]}, "`judged_by` of `huggingface` is for classes; name their column"),
    ],
)
def test_what_is_refused(given: dict[str, Any], told: str, folder: Path) -> None:
    with pytest.raises(InputError, match=told):
        blocks(folder, **given)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('{"note": "a", "of": "skin"}\n{"note": " ", "of": "skin"}', "line 2: `note` is empty; fill it in"),
        ('{"note": "a", "of": null}', "line 1: `of` is empty"),
        ('{"note": 3, "of": "skin"}', "line 1: `note` is not text: 3"),
        ('{"note": "a", "of": "skin"}\n\n{"note": "a"', "line 3: is not valid JSON"),
        ("[1]", "line 1: is not an object"),
        ('{"note": "a", "of": "heart"}', "line 1: `of` is `heart`; the classes are lung, skin"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(lines: str, told: str, folder: Path) -> None:
    (folder / "notes.jsonl").write_text(lines)
    with pytest.raises(InputError, match=told):
        read(folder / "notes.jsonl", str(folder / "bert"), "note", "of", ["lung", "skin"], 8)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "bert" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="has no tokenizer, and nothing is downloaded in a run"):
        blocks(folder)


def test_texts_of_a_table_may_be_long(folder: Path) -> None:
    long = "a rash " * 20_000
    (folder / "notes.csv").write_text(f"note,of\n{long},skin\na cough,lung\n")
    usual = csv.field_size_limit()
    try:
        assert blocks(folder, train="notes.csv")["model"]["options"]["labels"] == ["lung", "skin"]
    finally:
        csv.field_size_limit(usual)
