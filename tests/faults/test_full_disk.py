"""A disk that fills up stops its peer with a message; with room again, the same command goes on to the same bits."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from real_peers import Build, digests, until

PROTOCOL = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 MiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(filler: Path) -> None:
    """Put zeros at the end of that file while they fit."""
    # Unbuffered: what a buffer still held would be written when it closes, and fail there.
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))


def test_a_full_disk(small_disk: Path, federation: Build) -> None:
    one = federation(PROTOCOL, peers=3, rounds=12)
    expected = one.undisturbed()
    one.configure("peer1", out=str(small_disk / "peer1"))
    (one.directory / "peer1").symlink_to(small_disk / "peer1")
    one.start()
    one.await_event("peer1", "round", round=2)
    peer, filler = one.peers["peer1"], small_disk / "filler"

    def ended() -> bool:
        fill(filler)  # again and again: a checkpoint that is no longer needed makes room for the next one
        return not peer.running

    peer.signal(signal.SIGSTOP)  # or it may be over before the disk is full
    fill(filler)
    peer.signal(signal.SIGCONT)
    until(ended, 30, "peer1 ends on a full disk")
    assert peer.wait() == 1
    last = one.log("peer1").strip().splitlines()[-1]
    assert "cannot write" in last
    assert "make room and start again" in last
    assert "Traceback" not in one.log("peer1")
    filler.unlink()
    one.start("peer1")
    assert one.wait() == dict.fromkeys(one.ids, 0), one.log("peer1")
    assert digests(one.results()) == expected


ROWS = """
import numpy as np

def rows(tested=60_000):
    x = np.random.default_rng(0).normal(size=(tested + 300, 2)).astype("float32")
    y = np.arange(len(x)) % 10
    return x[:300], y[:300], x[300:], y[300:]
"""


def test_a_disk_without_room_for_predictions(small_disk: Path, federation: Build) -> None:
    """60,000 lines take more than what is free; of them, no part stays."""
    looked = {"resamples": 100, "predictions": True}
    data = {"name": "many_rows:rows"}
    one = federation({"name": "fedavg", "epochs": 1}, peers=2, rounds=1, data=data, final_evaluation=looked)
    (one.directory / "many_rows.py").write_text(ROWS)
    one.configure("peer1", out=str(small_disk / "peer1"))
    (one.directory / "peer1").symlink_to(small_disk / "peer1")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(53 << 20))
    one.start()
    assert one.peers["peer1"].wait() == 1
    last = one.log("peer1").strip().splitlines()[-1]
    assert "predictions.csv" in last
    assert "make room and start again" in last
    assert not [*(small_disk / "peer1").glob("predictions.csv*")]
    filler.unlink()
    one.start("peer1")
    assert one.wait() == dict.fromkeys(one.ids, 0), one.log("peer1")
    assert len((small_disk / "peer1" / "predictions.csv").read_text().splitlines()) == 60_001
