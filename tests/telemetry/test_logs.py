"""The log of a peer: rotated where it can be, and never a reason to fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.telemetry.logs import MAX_LOG_BYTES

LINES = """
import logging, os, sys
from peer.telemetry.logs import start_logging
start_logging()
logging.info("first")
if len(sys.argv) > 1: os.unlink(sys.argv[1])
for number in range(600): logging.info("%d %s", number, "x" * 10_000)
"""


def write(log: Path, mode: str, *arguments: str) -> None:
    with log.open(mode) as stderr:
        subprocess.run([sys.executable, "-c", LINES, *arguments], stderr=stderr, check=True, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere stderr does not say which file it is")
def test_a_log_that_has_grown_too_large_is_moved_aside(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    write(log, "a")
    assert log.stat().st_size < MAX_LOG_BYTES
    assert (tmp_path / "log.txt.1").read_text().splitlines()[0].endswith("first")
    assert log.read_text().splitlines()[-1].split()[2] == "599"


def test_one_that_was_not_opened_to_append_goes_on_growing(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    write(log, "w")
    assert len(log.read_text().splitlines()) == 601
    assert os.listdir(tmp_path) == ["log.txt"]


FULL = """
import errno, logging, os, shutil
from peer.telemetry import logs
copy, left = shutil.copyfile, [1]

def full(*arguments):
    if left: raise OSError(left.pop() and errno.ENOSPC, "no room")
    return copy(*arguments)

logs.MAX_LOG_BYTES, shutil.copyfile = 10_000, full
logs.start_logging()
for number in range(60): logging.info("%d %s", number, "x" * 1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere stderr does not say which file it is")
def test_a_disk_that_was_full_once_stops_no_later_rotation(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("a") as stderr:
        subprocess.run([sys.executable, "-c", FULL], stderr=stderr, check=True, timeout=60)
    assert (tmp_path / "log.txt.1").stat().st_size > 10_000
    assert log.stat().st_size < 12_000


def test_one_that_was_removed_is_no_reason_to_fail(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    write(log, "a", str(log))
    assert os.listdir(tmp_path) == []
