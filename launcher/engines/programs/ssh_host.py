"""What the launcher runs on a host, by the Python there: it reads orders, one JSON object per line, and answers each.

Only the standard library is used, and of that what an old Python has: the launcher learns from the answers which one
is there. The text of this file is sent and executed. No peer depends on this process: it ends with the connection, and
the peers keep running. In the run's directory there:

<id>.yaml, <id>/    as `dfl-peer` has them     .<id>.lock   locked while the peer runs; holds its process id
.<id>.exit          the code it ended with     .<id>.run    which run its files belong to

In reading order: messages to the launcher; small text files, whole or not there; a Python environment with dfl; one
peer in the run's directory; the run's directory; whether an address on one host is reached from another; and the
dispatcher. Orders about the same peer are executed one after the other, all others at once.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import metadata
from typing import Any, Callable  # noqa: UP035

sending = threading.Lock()


def send(**notice: Any) -> None:
    with sending:
        sys.stdout.write(json.dumps(notice) + "\n")
        sys.stdout.flush()


class CommandRejected(Exception):
    """The order cannot be executed; the message gives the reason."""


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str, text: str) -> None:
    part = f"{path}.{os.getpid()}.part"
    with suppress(FileNotFoundError):
        os.unlink(part)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.replace(part, path)


def intruders(directory: str) -> str:
    """Return how others could put files into the directory, with a hint; empty if they cannot, or it is not there."""
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


def make_own(directory: str) -> None:
    """Make the directory, unless it is there. Raises CommandRejected if others could put files into it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if why := intruders(directory):
        raise CommandRejected(why)


def absolute(directory: str) -> str:
    return os.path.abspath(os.path.expanduser(directory))


def installation_mark(directory: str) -> str:
    """Return the file that says that the environment is complete, and what is in it."""
    return os.path.join(directory, ".venv", ".dfl")


class Installation:
    """A Python environment in the directory of runs, with a wheel of dfl and what it needs.

    wheel: its name, and its content in base64. pins: the text of files for pip, by name: constraints.txt has versions
    and hashes of all packages, pip.txt those of pip itself, torch-cpu.txt those of torch without CUDA.
    """

    def __init__(
        self, directory: str, wheel: tuple[str, str], extras: list[str], pins: dict[str, str], torch: str
    ) -> None:
        self.root, (self.name, self.content) = absolute(directory), wheel
        self.extras, self.pins, self.torch = extras, pins, torch
        what = json.dumps([self.content, extras, pins], sort_keys=True)
        self.mark = f"{torch} {hashlib.sha256(what.encode()).hexdigest()}"

    def marked(self) -> str:
        """Return the mark of the environment that is there; empty if none is, or no whole one."""
        path = installation_mark(self.root)
        return read(path) if os.path.exists(path) else ""

    def make(self) -> None:
        """Make it. Raises CommandRejected with pip's reason if that fails."""
        make_own(self.root)
        environment = os.path.join(self.root, ".venv")
        # Of an environment that has the other torch, pip would keep that: its version is the same.
        begin_anew = ["--clear"] if self.marked().partition(" ")[0] != self.torch else []
        run_command(sys.executable, "-m", "venv", *begin_anew, environment)
        write(installation_mark(self.root), self.torch)  # of an environment that is not whole yet
        pip = [os.path.join(environment, "bin", "python"), "-m", "pip", "install"]
        pip += ["--disable-pip-version-check", "--quiet"]
        with tempfile.TemporaryDirectory(dir=self.root) as files:
            for name, text in self.pins.items():
                write(os.path.join(files, name), text)
            wheel = os.path.join(files, self.name)
            with open(wheel, "wb") as file:
                file.write(base64.b64decode(self.content))
            run_command(*pip, "-r", os.path.join(files, "pip.txt"))
            if self.torch == "cpu":
                self._install_torch([*pip, "--no-deps", "-r", os.path.join(files, "torch-cpu.txt")])
            # Alone and first, as pip cannot know its hash; and anew, as its version does not change with the code.
            run_command(*pip, "--no-deps", "--force-reinstall", wheel)
            extras = f"[{','.join(self.extras)}]" if self.extras else ""
            run_command(*pip, "-c", os.path.join(files, "constraints.txt"), f"dfl{extras}")
        write(installation_mark(self.root), self.mark)

    def _install_torch(self, command: list[str]) -> None:
        try:
            run_command(*command)
        except CommandRejected as error:
            raise CommandRejected(
                f"pip there finds no CPU build of torch ({error}); name an index that has it as `extra-index-url` in "
                "pip.conf there, or give the host `torch: cuda`"
            ) from None


def installation(*, torch: str | None, device: str, **order: Any) -> Installation:
    """Return the installation that the order asks for. torch: cpu or cuda; None: the one that the device needs."""
    return Installation(**order, torch=torch or fitting_torch(device))


NVIDIA = "/dev/nvidiactl"
"""What a Linux with a driver of NVIDIA has."""


def fitting_torch(device: str) -> str:
    """Return which build of torch the device needs: cpu, cuda, or "any" where there is but one."""
    if not sys.platform.startswith("linux"):
        return "any"
    has_gpu = os.path.exists(NVIDIA) or shutil.which("nvidia-smi") is not None
    return "cuda" if device.startswith("cuda") or (device == "auto" and has_gpu) else "cpu"


def installed(**order: Any) -> bool:
    """Return whether the environment is what the order asks for."""
    asked = installation(**order)
    return asked.marked() == asked.mark


def install(**order: Any) -> None:
    installation(**order).make()


def run_command(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        errors = [number for number, line in enumerate(said) if line.startswith("ERROR: ")]
        why = " ".join(line.strip() for line in said[errors[-1] if errors else -1 :])[:MAX_REASON_CHARACTERS]
        raise CommandRejected(f"{' '.join(command[:4])}: {why or f'exit code {done.returncode}'}")


MAX_REASON_CHARACTERS = 500
"""The most that is told of why a command failed."""


POLL_INTERVAL_S = 0.2
CHUNK_BYTES = 1 << 18
"""The most bytes of a file in one notice."""
FOLLOWED = ("events.jsonl", "log.txt")


class RemotePeerFiles:
    """One peer's files in the run's directory."""

    def __init__(self, directory: str, id: str) -> None:
        root = self.root = absolute(directory)
        self.id, self.out, self.config = id, os.path.join(root, id), os.path.join(root, f"{id}.yaml")
        self.lock, self.exit, self.run = (os.path.join(root, f".{id}.{kind}") for kind in ("lock", "exit", "run"))

    def runs(self) -> bool:
        try:
            with open(self.lock, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def code(self) -> int | None:
        """Return the exit code; None if it runs or never did. A power cut, which ends its keeper too, leaves none."""
        if self.runs():
            return None
        try:
            return int(read(self.exit))
        except FileNotFoundError:
            return -signal.SIGKILL if os.path.exists(self.lock) else None

    def signal(self, number: int) -> bool:
        """Return whether it was sent. Waits for a peer that is starting; one that is ending gets none."""
        while self.runs():
            try:
                os.kill(int(read(self.lock)), number)
                return True
            except ValueError:  # it is starting, by another connection, and has not written its pid yet
                time.sleep(0.05)
            except ProcessLookupError:  # it is ending
                return False
        return False

    def start(self, keeper: str) -> None:
        """Start it, unless it runs."""
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
        """Return the locked lock file; -1 if the peer runs. `runs` of another process holds it for a moment, too."""
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(10):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                time.sleep(0.05)  # a wait in the kernel would last until a running peer ends
        os.close(descriptor)
        return -1

    def earlier(self) -> dict[str, str]:
        """Return the run that its files belong to; empty if there are none."""
        try:
            found: dict[str, str] = json.loads(read(self.run))
        except FileNotFoundError:
            return {"owner": "of nobody known", "token": ""} if os.path.exists(self.out) else {}
        return found

    def obstacle(self, run: dict[str, str]) -> str:
        """Return why its files may not be used, if they are another run's; empty otherwise."""
        earlier = self.earlier() or run
        if run["token"] == earlier["token"] or run["owner"] == earlier["owner"]:
            return ""
        return (
            f"{self.out} belongs to another run ({earlier['owner']}); give another `directory`, or remove it if that "
            "run is no longer wanted"
        )

    def is_of_earlier(self, run: dict[str, str]) -> bool:
        """Return whether its files are of an earlier run of the same directory of a launcher."""
        earlier = self.earlier()
        return bool(earlier) and earlier["owner"] == run["owner"] and earlier["token"] != run["token"]

    def claim(self, run: dict[str, str]) -> None:
        """Claim the files for this run: those of an earlier run of the same directory of a launcher are discarded."""
        if why := self.obstacle(run):
            raise CommandRejected(why)
        if self.is_of_earlier(run):
            self.discard()
        write(self.run, json.dumps(run))

    def discard(self) -> None:
        """End it and remove all that is its alone. Raises CommandRejected if it does not end."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(100):
                if not self.runs():
                    break
                self.signal(number)
                time.sleep(0.1)  # its keeper is no child of this process, whose end could be awaited
        if self.runs():
            raise CommandRejected(f"{self.id} does not end, not even killed; see what `ps` says of it")
        shutil.rmtree(self.out, ignore_errors=True)
        certificate = [os.path.join(self.root, f"{self.id}.{kind}") for kind in ("pem", "key")]
        for path in (self.config, *certificate, self.exit, self.lock, self.run):
            if os.path.exists(path):
                os.remove(path)

    def follow(self, offsets: dict[str, int]) -> None:
        """Send what is added to its files, and then that it has ended."""
        while True:
            runs = self.runs()
            for name in FOLLOWED:
                offsets[name] = self._send_from(name, offsets[name])
            if not runs:
                code = self.code()
                send(peer=self.id, ended=-signal.SIGKILL if code is None else code)
                return
            time.sleep(POLL_INTERVAL_S)  # the standard library cannot watch a file for changes

    def _send_from(self, name: str, offset: int) -> int:
        path = os.path.join(self.out, name)
        if not os.path.exists(path):
            return offset
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < offset:
                offset = 0
            file.seek(offset)
            while data := file.read(CHUNK_BYTES):
                send(peer=self.id, file=name, at=offset, data=base64.b64encode(data).decode())
                offset += len(data)
        return offset


def survey(directory: str, run: dict[str, str], ids: list[str]) -> dict[str, Any]:
    """Return what the host has, its time, and which peers run there. Creates nothing."""
    root = absolute(directory)
    there = root
    while not os.path.exists(there):
        there = os.path.dirname(there)
    peers = [RemotePeerFiles(root, id) for id in ids]
    obstacles = [*map(intruders, (os.path.dirname(root), root)), *(peer.obstacle(run) for peer in peers)]
    codes = {peer.id: peer.code() for peer in peers}
    return {
        "python": [*sys.version_info[:3]],
        "dfl": version(),
        "time": time.time(),
        "torch": torch_build(),
        "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "installed": os.path.exists(installation_mark(os.path.dirname(root))),
        "free": shutil.disk_usage(there).free,
        "there": there,
        "writable": os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK),
        "obstacles": [why for why in obstacles if why],
        "running": [peer.id for peer in peers if peer.runs()],
        "codes": {id: code for id, code in codes.items() if code is not None},
    }


def version() -> str | None:
    try:
        return metadata.version("dfl")
    except metadata.PackageNotFoundError:
        return None


def torch_build() -> str:
    """Return the version of torch and the kind of machine, without an import that takes seconds."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return "none"
    path, build = str(torch.locate_file("torch/version.py")), torch.version
    if os.path.exists(path):  # for CUDA it says more than the package's version
        found = re.search(r"^__version__ = '([^']+)'", read(path), re.MULTILINE)
        build = found.group(1) if found else build
    return f"{build} ({platform.machine()})"


def device(name: str) -> str:
    """Return why the device cannot be used; empty if it can."""
    look = "import sys; from peer.learning.device import choose_device; choose_device(sys.argv[1])"
    done = subprocess.run([sys.executable, "-P", "-c", look, name], stdin=subprocess.DEVNULL, capture_output=True)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1].partition(": ")[2] if done.returncode and said else ""


def place(directory: str, run: dict[str, str], ids: list[str], files: dict[str, str]) -> dict[str, Any]:
    """Write the files, of which the text is given by name. Raises CommandRejected if peers run by other settings."""
    root = absolute(directory)
    make_own(os.path.dirname(root))
    make_own(root)
    os.chmod(root, 0o700)  # an earlier run's may be readable for others
    for other in peers_in(root):
        if other.id not in ids and other.is_of_earlier(run):
            other.discard()
    peers = [RemotePeerFiles(root, id) for id in ids]
    for peer in peers:
        peer.claim(run)
    running = [peer.id for peer in peers if peer.runs()]
    for name, text in files.items():
        path = os.path.join(root, name)
        old = read(path) if os.path.exists(path) else None
        if old != text:
            if running and name.endswith(".yaml"):
                raise CommandRejected(
                    f"{', '.join(running)} still run by other settings; take them up with `dfl-launch attach`"
                )
            write(path, text)
            if name.endswith(".yaml"):
                forget(directory, [id for id in ids if name in ("federation.yaml", f"{id}.yaml")])
    return {"root": root, **survey(directory, run, ids)}


def peers_in(root: str) -> list[RemotePeerFiles]:
    """Return all peers whose files are in the run's directory, of whatever run."""
    names = os.listdir(root) if os.path.isdir(root) else []
    return [
        RemotePeerFiles(root, name[1:-4]) for name in sorted(names) if name.startswith(".") and name.endswith(".run")
    ]


def discard(directory: str, run: dict[str, str], ids: list[str]) -> None:
    """End these peers and remove their files, with the last also what they share. Those of other runs stay."""
    root = absolute(directory)
    for peer in peers_in(root):
        if peer.id in ids and not peer.obstacle(run):
            peer.discard()
    if os.path.isdir(root) and not peers_in(root):
        for name in ("federation.yaml", "ca.pem"):
            with suppress(FileNotFoundError):
                os.remove(os.path.join(root, name))
        with suppress(OSError):  # it holds files that are not ours
            os.rmdir(root)


def forget(directory: str, ids: list[str]) -> None:
    """Forget how peers ended that are to be started anew."""
    for peer in (RemotePeerFiles(directory, id) for id in ids):
        for path in (peer.exit, peer.lock):
            if os.path.exists(path) and not peer.runs():
                os.remove(path)


def endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str, token: str) -> None:
    """Send the token to whatever connects to the address, for as long as this process runs."""
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
    """Return why the address does not answer with the token; empty if it does. Without a token any listener will do."""
    try:
        with socket.create_connection(endpoint(address), timeout=seconds) as called, called.makefile("rb") as heard:
            return "" if heard.read(len(token)) == token.encode() else "something else answers there"
    except socket.gaierror:
        return "no such host name there"
    except socket.timeout:  # noqa: UP041 (an old Python knows no other)
        return "timed out"
    except OSError as error:
        return (error.strerror or str(error)).lower()


SILENCE_S = 60
"""Seconds without an order after which this process ends, as the connection was lost without notice."""


def follow(directory: str, id: str, offsets: dict[str, int]) -> None:
    threading.Thread(target=RemotePeerFiles(directory, id).follow, args=(offsets,), daemon=True).start()


ORDERS: dict[str, Callable[..., Any]] = {
    **{order.__name__: order for order in (survey, installed, install, device, place, discard, forget, listen, dial)},
    "awake": lambda: None,  # that an order came shows that the launcher is there
    "start": lambda directory, id, keeper: RemotePeerFiles(directory, id).start(keeper),
    "send": lambda directory, id, number: RemotePeerFiles(directory, id).signal(number),
    "follow": follow,
}


def execute(before: threading.Thread | None, number: int, do: str, given: dict[str, Any]) -> None:
    if before:
        before.join()
    try:
        send(answer=number, result=ORDERS[do](**given))
    except CommandRejected as refusal:
        send(answer=number, refused=str(refusal))
    except OSError as error:
        send(answer=number, refused=f"{error.filename or do}: {error.strerror or error}")


def main() -> None:
    """Execute orders about the same peer one after the other, all others at once."""
    latest: dict[str, threading.Thread] = {}
    signal.alarm(SILENCE_S)
    send(hello=[*sys.version_info[:3]])
    for line in sys.stdin:
        signal.alarm(SILENCE_S)
        order = json.loads(line)
        given = order["given"]
        before = latest.get(given.get("id"))
        thread = threading.Thread(target=execute, args=(before, order["order"], order["do"], given), daemon=True)
        if "id" in given:
            latest[given["id"]] = thread
        thread.start()
    os._exit(0)


if __name__ == "__main__":
    main()
