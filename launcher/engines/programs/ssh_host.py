"""What the launcher runs on a host, by the Python there: it reads orders, a JSON object a line, and answers each.

Only the standard library is used, and of that what an old Python has: which one is there the launcher learns from the
answers. The text of this file is sent along and executed. No peer depends on all this: it ends with the connection, and
the peers go on. In the run's directory there:

<id>.yaml, <id>/    as `dfl-peer` has them     .<id>.lock   locked while the peer runs; holds its process id
.<id>.exit          the code it ended with     .<id>.run    of which run its files are

In reading order: what is said to the launcher; small text files, whole or not there; a Python environment with dfl;
one peer in the run's directory; the run's directory; whether an address on one host is reached from another; and the
orders. Orders about the same peer are obeyed one after the other, all others at once.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib import metadata
from typing import Any, Callable  # noqa: UP035

speaking = threading.Lock()


def say(**notice: Any) -> None:
    with speaking:
        sys.stdout.write(json.dumps(notice) + "\n")
        sys.stdout.flush()


class CommandRejected(Exception):
    """The order cannot be obeyed; the message says why."""


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str, text: str, mode: int) -> None:
    part = f"{path}.{os.getpid()}.part"
    with suppress(FileNotFoundError):
        os.unlink(part)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.replace(part, path)


def intruders(directory: str) -> str:
    """Who else could put files into the directory, and the way out; empty if nobody could, or it is not there yet."""
    try:
        found = os.lstat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(found.st_mode):
        return f"{directory} is a link; give the directory that it leads to as `directory`"
    if found.st_uid != os.getuid():
        return f"{directory} belongs to another user; give another `directory`"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to {directory}; close it to them with `chmod go-w`, or give another `directory`"
    return ""


def own(directory: str) -> None:
    """Makes the directory, unless it is there; Refused if others could put files into it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if why := intruders(directory):
        raise CommandRejected(why)


def absolute(directory: str) -> str:
    return os.path.abspath(os.path.expanduser(directory))


def installation_mark(directory: str) -> str:
    """What says that the environment is whole, and what is in it."""
    return os.path.join(directory, ".venv", ".dfl")


def contents(content: str, extras: list[str]) -> str:
    return f"{hashlib.sha256(content.encode()).hexdigest()} {' '.join(extras)}"


def installed(directory: str, content: str, extras: list[str]) -> bool:
    """Whether the environment holds that wheel; `content` is base64."""
    path = installation_mark(absolute(directory))
    return os.path.exists(path) and read(path) == contents(content, extras)


def install(directory: str, name: str, content: str, extras: list[str]) -> None:
    """An environment with that wheel, which has the same version again after a change of the code."""
    root = absolute(directory)
    own(root)
    python, wheel = os.path.join(root, ".venv", "bin", "python"), os.path.join(root, name)
    with open(wheel, "wb") as file:
        file.write(base64.b64decode(content))
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    run_command(sys.executable, "-m", "venv", os.path.join(root, ".venv"))
    run_command(*pip, wheel + (f"[{','.join(extras)}]" if extras else ""))
    run_command(*pip, "--no-deps", "--force-reinstall", wheel)
    os.remove(wheel)
    write(installation_mark(root), contents(content, extras), 0o600)


def run_command(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise CommandRejected(f"{' '.join(command[:4])}: {said[-1] if said else f'exit code {done.returncode}'}")


LOOK = 0.2
"""Seconds between two looks at a peer's files."""
CHUNK = 1 << 18
"""Bytes of a file in one notice."""
FOLLOWED = ("events.jsonl", "log.txt")


class RemotePeerFiles:
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
                raise CommandRejected(why)

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
            raise CommandRejected(why)
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
            raise CommandRejected(f"{self.id} does not end, not even killed; see what `ps` says of it")
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


def survey(directory: str, run: dict[str, str], ids: list[str]) -> dict[str, Any]:
    """What the host has, and which peers run there. Creates nothing."""
    root = absolute(directory)
    there = root
    while not os.path.exists(there):
        there = os.path.dirname(there)
    others = [RemotePeerFiles(root, id).obstacle(run) for id in ids]
    codes = {id: RemotePeerFiles(root, id).code() for id in ids}
    return {
        "python": [*sys.version_info[:3]],
        "dfl": version(),
        "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "installed": os.path.exists(installation_mark(os.path.dirname(root))),
        "free": shutil.disk_usage(there).free,
        "there": there,
        "writable": os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK),
        "obstacles": [why for why in (*map(intruders, (os.path.dirname(root), root)), *others) if why],
        "running": [id for id in ids if RemotePeerFiles(root, id).runs()],
        "codes": {id: code for id, code in codes.items() if code is not None},
    }


def version() -> str | None:
    try:
        return metadata.version("dfl")
    except metadata.PackageNotFoundError:
        return None


def device(name: str) -> str:
    """Why the device cannot be used; empty if it can."""
    look = "import sys; from peer.learning.device import choose_device; choose_device(sys.argv[1])"
    done = subprocess.run([sys.executable, "-P", "-c", look, name], stdin=subprocess.DEVNULL, capture_output=True)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1].partition(": ")[2] if done.returncode and said else ""


def place(directory: str, run: dict[str, str], ids: list[str], files: dict[str, tuple[str, int]]) -> dict[str, Any]:
    """Puts the files there, name: (text, permissions), unless peers run by others."""
    root = absolute(directory)
    own(os.path.dirname(root))
    own(root)
    os.chmod(root, 0o700)  # that of an earlier run may be open to readers
    for other in peers_in(root):
        if other.id not in ids and other.is_of_earlier(run):
            other.discard()
    peers = [RemotePeerFiles(root, id) for id in ids]
    for peer in peers:
        peer.claim(run)
    running = [peer.id for peer in peers if peer.runs()]
    for name, (text, mode) in files.items():
        path = os.path.join(root, name)
        old = read(path) if os.path.exists(path) else None
        if old != text:
            if running and name.endswith(".yaml"):
                raise CommandRejected(
                    f"{', '.join(running)} still run by other settings; take them up with `dfl-launch attach`"
                )
            write(path, text, mode)
            if name.endswith(".yaml"):
                forget(directory, [id for id in ids if name in ("federation.yaml", f"{id}.yaml")])
    return {"root": root, **survey(directory, run, ids)}


def peers_in(root: str) -> list[RemotePeerFiles]:
    """All whose files are in the run's directory, whoever placed them."""
    names = os.listdir(root) if os.path.isdir(root) else []
    return [
        RemotePeerFiles(root, name[1:-4]) for name in sorted(names) if name.startswith(".") and name.endswith(".run")
    ]


def discard(directory: str, run: dict[str, str], ids: list[str]) -> None:
    """Ends these peers and removes what is theirs; what they share, with the last. Those of other runs stay."""
    root = absolute(directory)
    for peer in peers_in(root):
        if peer.id in ids and not peer.obstacle(run):
            peer.discard()
    if os.path.isdir(root) and not peers_in(root):
        for name in ("federation.yaml", "ca.pem"):
            with suppress(FileNotFoundError):
                os.remove(os.path.join(root, name))
        with suppress(OSError):  # somebody has put something there
            os.rmdir(root)


def forget(directory: str, ids: list[str]) -> None:
    """How peers have ended that are to be started anew."""
    for peer in (RemotePeerFiles(absolute(directory), id) for id in ids):
        for path in (peer.exit, peer.lock):
            if os.path.exists(path) and not peer.runs():
                os.remove(path)


def start(directory: str, id: str, keeper: str) -> None:
    RemotePeerFiles(absolute(directory), id).start(keeper)


def send(directory: str, id: str, number: int) -> bool:
    return RemotePeerFiles(absolute(directory), id).signal(number)


def follow(directory: str, id: str, offsets: dict[str, int]) -> None:
    threading.Thread(target=RemotePeerFiles(absolute(directory), id).follow, args=(offsets,), daemon=True).start()


def endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str, token: str) -> None:
    """Greets whoever connects at the address with the token, for as long as an order is awaited."""
    host, port = endpoint(address)
    try:
        server = listener(host, port)
    except OSError as error:
        raise CommandRejected((error.strerror or str(error)).lower()) from None
    threading.Thread(target=greet, args=(server, token.encode()), daemon=True).start()


def listener(host: str, port: int) -> socket.socket:
    if host in ("0.0.0.0", "::") and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(place[:2], family=family)


def greet(server: socket.socket, token: bytes) -> None:
    while True:
        caller, _ = server.accept()
        with caller:
            caller.sendall(token)


def dial(address: str, token: str, seconds: float) -> str:
    """Why nobody with the token is reached at the address; empty if somebody is. Without a token anybody does."""
    try:
        with socket.create_connection(endpoint(address), timeout=seconds) as connection:
            if not token:
                return ""
            heard = b""
            while len(heard) < len(token) and (data := connection.recv(len(token) - len(heard))):
                heard += data
            return "" if heard == token.encode() else "somebody else answers there"
    except socket.gaierror:
        return "no such host name there"
    except socket.timeout:  # noqa: UP041 (an old Python knows no other)
        return "timed out"
    except OSError as error:
        return (error.strerror or str(error)).lower()


SILENCE = 60
"""Seconds without an order after which this process ends: the connection is lost, and nobody has told it."""


def awake() -> None:
    """The launcher is there."""


ORDERS: dict[str, Callable[..., Any]] = {
    **{
        one.__name__: one
        for one in (
            awake,
            survey,
            installed,
            install,
            device,
            place,
            discard,
            forget,
            start,
            send,
            follow,
            listen,
            dial,
        )
    },
}


def obey(before: threading.Thread | None, number: int, do: str, given: dict[str, Any]) -> None:
    if before:
        before.join()
    try:
        say(answer=number, result=ORDERS[do](**given))
    except CommandRejected as refusal:
        say(answer=number, refused=str(refusal))
    except OSError as error:
        say(answer=number, refused=f"{error.filename or do}: {error.strerror or error}")


def main() -> None:
    """Orders about the same peer are obeyed one after the other, all others at once."""
    latest: dict[str, threading.Thread] = {}
    signal.alarm(SILENCE)
    say(hello=[*sys.version_info[:3]])
    for line in sys.stdin:
        signal.alarm(SILENCE)
        order = json.loads(line)
        given = order["given"]
        before = latest.get(given.get("id"))
        thread = threading.Thread(target=obey, args=(before, order["order"], order["do"], given), daemon=True)
        if "id" in given:
            latest[given["id"]] = thread
        thread.start()
    os._exit(0)


if __name__ == "__main__":
    main()
