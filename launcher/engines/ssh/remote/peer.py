"""One peer in the run's directory on a host: whether it runs, its start, its end, its files."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from launcher.engines.ssh.remote.files import read, write
from launcher.engines.ssh.remote.speech import Refused, say

LOOK = 0.2
"""Seconds between two looks at a peer's files."""
CHUNK = 1 << 18
"""Bytes of a file in one notice."""
FOLLOWED = ("events.jsonl", "log.txt")


class Peer:
    """One peer's files in the run's directory."""

    def __init__(self, root: str, id: str) -> None:
        self.root, self.id = root, id
        self.out, self.config = os.path.join(root, id), os.path.join(root, f"{id}.yaml")
        self.lock, self.exit, self.run = (os.path.join(root, f".{id}.{kind}") for kind in ("lock", "exit", "run"))

    def runs(self) -> bool:
        try:
            descriptor = os.open(self.lock, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def code(self) -> int | None:
        """The exit code; None if it runs or never did. Killed with its keeper, as by a power cut, it has left none."""
        if self.runs():
            return None
        try:
            return int(read(self.exit))
        except FileNotFoundError:
            return -signal.SIGKILL if os.path.exists(self.lock) else None

    def signal(self, number: int) -> bool:
        """Whether it was sent. One that begins is waited for; one that ends gets none."""
        while self.runs():
            try:
                os.kill(int(read(self.lock)), number)
                return True
            except ValueError:  # it begins, started by another connection: its file tells nobody when it has its number
                time.sleep(0.05)
            except ProcessLookupError:  # it ends
                return False
        return False

    def start(self, keeper: str) -> None:
        """Does nothing if it runs."""
        lock = self._locked()
        if lock < 0:
            return
        os.ftruncate(lock, 0)  # first, as another connection may be about to signal the process that was there
        if os.path.exists(self.exit):
            os.remove(self.exit)
        os.makedirs(self.out, mode=0o700, exist_ok=True)
        log = os.open(os.path.join(self.out, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        answer, theirs = os.pipe()
        command = [sys.executable, "-c", keeper, str(lock), self.exit, str(theirs)]
        command += [sys.executable, "-u", "-P", "-m", "peer.cli", "--config", self.config, "--quiet"]
        try:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
                pass_fds=(lock, theirs),
                start_new_session=True,
            )
        finally:
            for descriptor in (lock, log, theirs):
                os.close(descriptor)
        with open(answer, encoding="utf-8") as file:
            if why := file.read():
                raise Refused(why)

    def _locked(self) -> int:
        """The lock file with its lock; -1 if the peer runs. Who only looks has the lock for a moment, too."""
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(10):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                time.sleep(0.05)  # to wait in the kernel would be to wait for the end of a peer that runs
        os.close(descriptor)
        return -1

    def earlier(self) -> dict[str, str]:
        """Of which run its files are; empty if there are none."""
        try:
            found: dict[str, str] = json.loads(read(self.run))
        except FileNotFoundError:
            return {"owner": "of nobody known", "token": ""} if os.path.exists(self.out) else {}
        return found

    def obstacle(self, run: dict[str, str]) -> str:
        """Whose its files are, if they are another's; empty if not."""
        earlier = self.earlier() or run
        if run["token"] == earlier["token"] or run["owner"] == earlier["owner"]:
            return ""
        return (
            f"{self.out} belongs to another run ({earlier['owner']}); give another `directory`, or remove it if that "
            "run is no longer wanted"
        )

    def is_of_earlier(self, run: dict[str, str]) -> bool:
        """Whether its files are of an earlier run of the same launcher's directory."""
        earlier = self.earlier()
        return bool(earlier) and earlier["owner"] == run["owner"] and earlier["token"] != run["token"]

    def claim(self, run: dict[str, str]) -> None:
        """Makes the files this run's: those of an earlier run of the same launcher's directory are discarded."""
        if why := self.obstacle(run):
            raise Refused(why)
        if (self.earlier() or run)["token"] != run["token"]:
            self.discard()
        write(self.run, json.dumps(run), 0o600)

    def discard(self) -> None:
        """Ends it and removes all that is its alone; Refused if it does not end."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(100):
                if not self.runs():
                    break
                self.signal(number)
                time.sleep(0.1)  # as its keeper is no child of this process, nobody is told of its end
        if self.runs():
            raise Refused(f"{self.id} does not end, not even killed; see what `ps` says of it")
        shutil.rmtree(self.out, ignore_errors=True)
        certificate = [os.path.join(self.root, f"{self.id}.{kind}") for kind in ("pem", "key")]
        for path in (self.config, *certificate, self.exit, self.lock, self.run):
            if os.path.exists(path):
                os.remove(path)

    def follow(self, offsets: dict[str, int]) -> None:
        """Tells what is added to its files, and then that it has ended."""
        while True:
            runs = self.runs()
            for name in FOLLOWED:
                offsets[name] = self._tell(name, offsets[name])
            if not runs:
                code = self.code()
                say(peer=self.id, ended=-signal.SIGKILL if code is None else code)
                return
            time.sleep(LOOK)  # the standard library has nothing that tells of changes of a file

    def _tell(self, name: str, offset: int) -> int:
        path = os.path.join(self.out, name)
        if not os.path.exists(path):
            return offset
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < offset:
                offset = 0
            file.seek(offset)
            while data := file.read(CHUNK):
                say(peer=self.id, file=name, at=offset, data=base64.b64encode(data).decode())
                offset += len(data)
        return offset
