"""Code of a user's own is found wherever a spec names it, by all who bring it to the peers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.engines.base import shipped
from launcher.engines.docker import code_files, in_containers
from launcher.engines.kubernetes_objects import CODE, ClusterLayout
from peer.spec.agreement import user_code
from peer.spec.loading import load_spec

MEMBER = {"id": "b", "address": "127.0.0.1:7201"}
SPECS: dict[str, dict[str, Any]] = {
    "training.step": {"training": {"step": "spare_parts:f"}},
    "training.loop": {"training": {"loop": "spare_parts:f"}},
    "a figure": {"task": {"name": "classification", "judged_by": ["auroc", "spare_parts:f"]}},
    "transforms": {"data": {"name": "digits", "transforms": ["spare_parts:f"]}},
    "test_transforms": {"data": {"name": "digits", "test_transforms": [{"spare_parts:f": {}}]}},
    "collate": {"data": {"name": "installed:function", "collate": "spare_parts:f"}},
    "a member's data": {"ring": [{**MEMBER, "data": "spare_parts:f"}]},
    "a member's transforms": {"ring": [{**MEMBER, "data": {"name": "digits", "transforms": ["spare_parts:f"]}}]},
    "model": {"model": "spare_parts:f"},
    "data": {"data": "spare_parts:f"},
}


@pytest.mark.parametrize("where", SPECS)
def test_every_engine_brings_the_code_that_a_spec_names(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    ring = [{"id": "a", "address": "127.0.0.1:7200"}, MEMBER]
    content = {"name": "f", "protocol": "fedavg", "data": "digits", "plaintext": True, **SPECS[where]}
    content["ring"] = [ring[0], *content.get("ring", [MEMBER])]
    (tmp_path / "spare_parts.py").write_text("")
    (tmp_path / "f.yaml").write_text(json.dumps(content))

    spec = load_spec(tmp_path / "f.yaml")

    assert sys.path[0] == str(tmp_path)
    assert "spare_parts:f" in spec.own_code
    assert shipped(spec).code == in_containers(spec).code == tmp_path
    assert [*code_files(spec)] == [tmp_path / "spare_parts.py"]
    assert f"code: {CODE}\n" in ClusterLayout(spec).files()["federation.yaml"]


def test_a_spec_without_code_of_its_own_brings_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "f.yaml").write_text("protocol: fedavg\ndata: {name: digits, transforms: [RandomHorizontalFlip]}\n")
    spec = load_spec(tmp_path / "f.yaml", peers=2)
    assert str(tmp_path) not in sys.path
    assert shipped(spec).code is in_containers(spec).code is None
    assert [*code_files(spec)] == []
    assert "code:" not in ClusterLayout(spec).files()["federation.yaml"]


@pytest.mark.parametrize("task", ["own_task:Counts", {"name": "own_task:Counts", "loss": "mse"}])
def test_a_task_is_found_however_it_is_written(task: Any) -> None:
    assert user_code({"protocol": "fedavg", "task": task}) == ["own_task:Counts"]


def test_a_spec_that_is_none_names_no_code() -> None:
    assert user_code({"protocol": "extras.statistics:Statistics", "task": {"name": "extras.surfaces:Surfaces"}}) == []
    assert user_code({"training": 3, "data": [1], "ring": {"a": 1}, "model": {"name": 4}, "task": None}) == []
