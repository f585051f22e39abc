"""The page that every run leaves, and what becomes of a run where it cannot be made."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from fake_runs import Run

from launcher.page import build, charts
from launcher.page.document import Card


def test_a_run_ends_with_its_page(run: Run, tmp_path: Path) -> None:
    code, said = run()
    page = tmp_path / "out" / "report.html"
    assert (code, page.is_file()) == (0, True)
    assert said.endswith(f"report: {page}\n")
    page.unlink()
    run(peer1="gives up", fresh=True)
    assert page.is_file()
    page.write_text("of an earlier run")
    run(peer1="wrong", fresh=True)
    assert not page.exists()


def test_without_the_package_the_run_is_none_the_worse(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    run(peer1="gives up")
    assert (tmp_path / "out" / "report.html").exists()
    monkeypatch.setattr(charts, "version", missing)
    code, said = run()
    assert code == 0
    assert (tmp_path / "out" / "summary.json").is_file()
    assert not (tmp_path / "out" / "report.html").exists()
    [line] = [line for line in said.splitlines() if line.startswith("no report: ")]
    assert "pip install -c constraints.txt 'dfl[report]'" in line


def test_a_number_that_no_page_bears_ends_no_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "cards", lambda *_: [Card("mean", "Mean", float("nan"), "nan")])
    code, said = run()
    assert code == 0
    assert not (tmp_path / "out" / "report.html").exists()
    assert "no report: what the peers have told cannot be shown" in said
