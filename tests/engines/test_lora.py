"""The example with LoRA adapters through PEFT, as real peers: only adapters travel, and a kill changes no bit."""

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from faults.accidents import start_and_die
from real_peers import Build, SmallFederation, digests
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file

from peer.learning.export import load_model
from peer.learning.model.model import Model

if not find_spec("peft"):
    pytest.skip("PEFT is missing: pip install -c constraints.txt 'dfl[adapters]'", allow_module_level=True)
EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS = 3


def made(federation: Build, **model: Any) -> SmallFederation:
    content = YAML(typ="safe").load((EXAMPLES / "lora.yaml").read_text(encoding="utf-8"))
    content["data"]["limit"] = 600
    content["model"] |= model
    kept = {key: content[key] for key in ("data", "model")}
    return federation(content["protocol"], 3, rounds=ROUNDS, patience=60, code=str(EXAMPLES), **kept)


def loaded(one: SmallFederation, id: str) -> Model:
    return load_model(one.directory / id / "model.safetensors", user_model="lora:adapted")


def test_only_adapters_travel_and_a_killed_peer_ends_with_the_same_bits(federation: Build) -> None:
    plain, killed = made(federation), made(federation)
    results = plain.run()
    assert mean(result["accuracy"]["matched"] for result in results.values()) > 0.3, "drawn blindly it is 0.25"
    start_and_die(killed, {"peer1": "training:30"})
    assert killed.wait() == dict.fromkeys(killed.ids, 0), killed.account()
    assert digests(killed.results()) == digests(results)

    models = {id: loaded(plain, id) for id in plain.ids}
    learnt = models["peer0"].entries("extractor")
    assert learnt
    assert all(".lora_" in entry.name for entry in learnt)
    assert len({model.frozen_sha256 for model in models.values()}) == 1
    assert sum(tensor.numel() for tensor in models["peer0"].frozen.values()) > 10 * sum(entry.size for entry in learnt)
    for one in (plain, killed):
        sent = Counter[int]()
        for id in one.ids:
            lines = [json.loads(line) for line in (one.directory / id / "audit.jsonl").read_text().splitlines()]
            for line in {line["round"]: line for line in lines}.values():
                assert {entry["vector"] for entry in line["sent"]} <= {"extractor"}
                assert not any(entry["head_bytes"] for entry in line["sent"])
                sent[line["round"]] += sum(entry["bytes"] for entry in line["sent"])
        # An all-reduce among three: each peer sends 4/3 of the vector, and of what is frozen nothing.
        assert dict(sent - Counter()) == dict.fromkeys(range(1, ROUNDS + 1), 4 * models["peer0"].sizes["extractor"] * 4)


def test_a_pretrained_base_has_neither_adapters_nor_head(federation: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import lora

    base = lora.pretrained(steps=20).state_dict()
    one = made(federation, weights="base.safetensors", partial=True)
    save_file(base, one.directory / "base.safetensors")
    one.run()
    saved = load_file(one.directory / "peer0" / "model.safetensors")
    for name, tensor in base.items():
        kept = [f"extractor.{name}", f"extractor.{name.rpartition('.')[0]}.base_layer.{name.rpartition('.')[2]}"]
        assert any(at in saved and saved[at].equal(tensor) for at in kept), name
