"""Files that are whole or not there, and locks that keep others out, as every floor uses them."""

import fcntl
import os
import subprocess
import sys
from contextlib import ExitStack
from errno import EINVAL, ENOLCK, ENOSPC, ENOSYS
from pathlib import Path
from random import Random

import pytest

from peer.errors import FailedError
from peer.files import BLOCK_BYTES, STAGING_BYTES, Buffer, lock, write_atomically


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def test_a_secret_is_never_in_a_file_that_others_may_read(tmp_path: Path) -> None:
    """Not even in what a crash left behind, which somebody may have open."""
    left = tmp_path / ".key.part"
    left.write_text("half")
    left.chmod(0o644)
    with left.open() as reader:
        write_atomically(tmp_path / "key", b"secret", permissions=0o600)
        assert reader.read() == "half"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("size", [0, 1, STAGING_BYTES - 1, STAGING_BYTES, STAGING_BYTES + 1, 2 * STAGING_BYTES + 4097])
@pytest.mark.parametrize("refused", ["nothing", "at once", "after a part of a block"])
def test_a_file_is_what_its_buffers_are_whatever_the_file_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, refused: str
) -> None:
    """Past the page cache or through it, of any length, and over a longer file that is no longer needed."""
    content = Random(size).randbytes(size)
    buffers: list[Buffer] = [content[:3], memoryview(content)[3:5000], content[5000:]]
    spare, write, calls = tmp_path / "spare", os.write, list[int]()
    spare.write_bytes(b"x" * (size + 2 * BLOCK_BYTES))

    def limited(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0))
        if refused == "after a part of a block" and len(calls) == 1 and len(data) > 512:
            return write(descriptor, data[:512])
        if direct and refused != "nothing":
            raise OSError(EINVAL, "Invalid argument")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    write_atomically(tmp_path / "file", buffers, spare)
    assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_copy_by_hard_links_is_not_written_over(tmp_path: Path) -> None:
    """Such as `cp -al` makes: the backup of a peer's directory changed with it."""
    spare = tmp_path / "spare"
    spare.write_bytes(b"earlier")
    (tmp_path / "copy").hardlink_to(spare)
    write_atomically(tmp_path / "file", b"later", spare)
    assert ((tmp_path / "file").read_bytes(), (tmp_path / "copy").read_bytes()) == (b"later", b"earlier")


@pytest.mark.parametrize("room", [STAGING_BYTES, STAGING_BYTES - BLOCK_BYTES], ids=["after a block", "within a block"])
def test_a_large_file_that_finds_no_room_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    write = os.write

    def until_full(descriptor: int, data: memoryview) -> int:
        if not (left := room - os.lseek(descriptor, 0, os.SEEK_CUR)):
            raise OSError(ENOSPC, "No space left on device")
        return write(descriptor, data[:left])

    (tmp_path / "file").write_bytes(b"before")
    monkeypatch.setattr(os, "write", until_full)
    with pytest.raises(FailedError, match="make room"):
        write_atomically(tmp_path / "file", bytes(3 * STAGING_BYTES))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"before"}


def test_a_lock_keeps_others_out_until_its_last_copy_is_closed(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    copy = os.dup(first)
    assert lock(first)
    os.close(first)
    assert not lock(second)
    assert not lock(second, patience=0.01)
    os.close(copy)
    assert lock(second)
    os.close(second)


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    holder = "import sys; from peer.files import lock; lock(0); print(flush=True); sys.stdin.buffer.raw.read()"
    reads, writes = os.pipe()
    held = opened(tmp_path)
    program = holder.replace("lock(0)", f"lock({held})").replace("sys.stdin.buffer.raw.read()", f"open({reads}).read()")
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(held, reads)) as process, ExitStack() as end:
        end.callback(process.kill)
        assert process.stdout
        process.stdout.readline()
        os.close(held)
        ours = opened(tmp_path)
        assert not lock(ours)
        os.close(writes)
        os.close(reads)
        assert lock(ours, patience=60), "the other process ends"
        os.close(ours)


@pytest.mark.parametrize("number", [ENOLCK, ENOSYS])
def test_where_a_file_system_has_no_locks_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    descriptor = opened(tmp_path)
    assert lock(descriptor)
    os.close(descriptor)


WITHOUT_DESCRIPTORS = """
import os, sys, threading, resource
from errno import EMFILE
from pathlib import Path
from peer.files import sync, write_atomically
from peer.telemetry.events import Done
from peer.files import LineFile
from peer.telemetry.results import append_audit
from peer.telemetry.telemetry import Telemetry

out = Path(sys.argv[1])
telemetry = Telemetry()
telemetry.write_to(out / "events.jsonl")
telemetry.emit(Done())
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError as error:
    assert error.errno == EMFILE
telemetry.emit(Done())
first = held.pop()
threading.Timer(0.5, lambda: os.close(first)).start()
write_atomically(out / "result.json", b"whole")
sync(out)
held.append(os.dup(0))
second = held.pop()
threading.Timer(0.5, lambda: os.close(second)).start()
append_audit(LineFile(out / "audit.jsonl"), {"round": 1})
"""


def test_without_a_free_descriptor_lines_are_written_and_files_wait(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path)], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "result.json").read_text() == "whole"
    assert (tmp_path / "audit.jsonl").read_text() == '{"round": 1}\n'
