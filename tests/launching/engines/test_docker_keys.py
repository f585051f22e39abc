"""Data that lie around the certificates show no container the keys of other peers, by whatever links they are named."""

from pathlib import Path

import pytest

from launcher.certificates import make_certificates
from launcher.cli import main
from launcher.engines.base import Run
from launcher.engines.docker import Shared, shared
from launcher.run_files import RunFiles
from peer.spec.loading import load_spec


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """Data are named by a link to the directory that has the certificates and the run as well."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = tmp_path / "fed.yaml"
    path.write_text(f"rounds: 1\nprotocol: fibfl\ndata: {{name: cifar10, root: {tmp_path / 'link'}}}\n")
    make_certificates(load_spec(path, peers=3), tmp_path / "real" / "certs", days=1)
    return path


@pytest.mark.parametrize("named", ["link", "real"])
def test_nothing_is_seen_where_the_data_have_the_certificates_and_the_run(federation: Path, named: str) -> None:
    place = federation.parent
    run = Run(load_spec(federation, peers=3), RunFiles(place / named / "run"), certs=place / named / "certs")
    seen = shared(run, "peer0")
    assert Shared(place / "link", place / "link") in seen
    assert {one.target for one in seen if one.source is None} == {place / "link" / "certs", place / "link" / "run"}


def test_compose_refuses_data_that_have_the_certificates(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, certs = federation.parent / "docker-compose.yml", federation.parent / "real" / "certs"
    assert main(["compose", str(federation), "--peers", "3", "--certs", str(certs), "--out", str(out)]) == 2
    assert "every peer would see all keys" in capsys.readouterr().err
    assert not out.exists()
