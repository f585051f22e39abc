"""`dfl-launch compose` writes over its own files and over nobody else's."""

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from launcher.cli import main

DEMO = Path(__file__).parents[3] / "examples" / "demo.yaml"


def test_a_file_of_its_own_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "docker-compose.yml"
    assert main(["compose", str(DEMO), "--out", str(out)]) == 0
    made = out.read_text()
    assert main(["compose", str(DEMO), "--option", "memory=3g", "--out", str(out)]) == 0
    assert out.read_text() == made.replace("${MEMORY:-2g}", "3g")


@pytest.mark.parametrize("content", ["services: {mine: {image: mine}}\n", "", None])
def test_a_file_of_somebody_else_stays_as_it_is(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """None: it is a pipe, which nobody opens to write."""
    out = tmp_path / "docker-compose.yml"
    os.mkfifo(out) if content is None else out.write_text(content)
    assert main(["compose", str(DEMO), "--out", str(out)]) == 2
    assert "was not made by `dfl-launch compose`; choose another file with --out" in capsys.readouterr().err
    assert out.is_fifo() if content is None else out.read_text() == content


def test_a_file_of_weights_goes_into_every_container(tmp_path: Path) -> None:
    (tmp_path / "base.pt").write_bytes(b"")
    demo = tmp_path / "demo.yaml"
    demo.write_text(DEMO.read_text(encoding="utf-8") + "\nmodel: {name: mlp, weights: base.pt}\n", encoding="utf-8")
    assert main(["compose", str(demo), "--out", str(tmp_path / "docker-compose.yml")]) == 0
    content = YAML(typ="safe").load(tmp_path / "docker-compose.yml")
    for service in content["services"].values():
        assert "weights: /weights/base.pt" in service["environment"]["DFL_FEDERATION"]
        assert {"type": "bind", "source": "./base.pt", "target": "/weights/base.pt", "read_only": True} in service[
            "volumes"
        ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_containers_that_would_run_as_root_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs, out = tmp_path / "certs", ["--certs", str(tmp_path / "certs"), "--out", str(tmp_path / "docker-compose.yml")]
    assert main(["certs", str(DEMO), "--out", str(certs)]) == 0
    for number in range(1, 5):
        os.chown(certs / f"peer{number}.key", 1000, 1000)
    assert main(["compose", str(DEMO), *out]) == 0
    assert "the containers of peer0 will run as root, to whom" in " ".join(capsys.readouterr().out.split())
    os.chown(certs / "peer0.key", 1000, 1000)
    assert main(["compose", str(DEMO), *out]) == 0
    assert "as root" not in capsys.readouterr().out
