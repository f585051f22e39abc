"""Into which directories of a host keys are put, and into which not."""

import os
import stat
from pathlib import Path

import pytest

from launcher.engines.programs.ssh_host import CommandRejected, place, survey, write

RUN = {"owner": "me@desk:/run", "token": "1"}
KEY = {"peer0.key": "secret"}


def test_what_others_can_read_of_an_earlier_run_is_closed(tmp_path: Path) -> None:
    root = tmp_path / "dfl" / "run"
    root.mkdir(parents=True, mode=0o755)
    place(str(root), RUN, ["peer0"], KEY)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "peer0.key").stat().st_mode) == 0o600


def test_directories_that_are_made_are_closed(tmp_path: Path) -> None:
    place(str(tmp_path / "dfl" / "run"), RUN, ["peer0"], KEY)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "dfl", tmp_path / "dfl" / "run")} == {0o700}


@pytest.mark.parametrize("wrong", ["dfl", "dfl/run"])
@pytest.mark.parametrize("how", ["link", "group", "others", "owner"])
def test_where_others_can_write_no_key_is_put(
    tmp_path: Path, wrong: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, found = tmp_path / "dfl" / "run", tmp_path / wrong
    root.mkdir(parents=True, mode=0o700)
    if how == "link":
        found.rename(tmp_path / "elsewhere")
        found.symlink_to(tmp_path / "elsewhere")
    elif how == "owner":
        monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    else:
        found.chmod(0o770 if how == "group" else 0o702)
    named = {"link": "is a link", "owner": "belongs to another user"}.get(how, "others may write to")
    assert any(named in why for why in survey(str(root), RUN, ["peer0"])["obstacles"])
    with pytest.raises(CommandRejected, match=named):
        place(str(root), RUN, ["peer0"], KEY)
    assert not (root / "peer0.key").exists()


def test_a_link_laid_out_for_a_key_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f"key.{os.getpid()}.part").symlink_to(tmp_path / "theirs")
    write(str(tmp_path / "key"), "secret")
    assert (tmp_path / "key").read_text() == "secret"
    assert not (tmp_path / "key").is_symlink()
    assert not (tmp_path / "theirs").exists()
