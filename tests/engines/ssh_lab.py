"""A lab on this machine: hosts in network namespaces, each with its sshd, and a desk from which the launcher runs."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from faults import hosts as namespaces
from real_peers import until

ROOT = Path(__file__).parents[2]
HOSTS = 3
PORT = 22


def missing() -> str:
    """Why there can be no lab here; empty when there can."""
    if why := namespaces.missing():
        return why
    try:
        import asyncssh  # noqa: F401
    except ImportError:
        return "asyncssh is not installed"
    lacking = [tool for tool in ("/usr/sbin/sshd", "ssh-keygen") if not shutil.which(tool)]
    return f"{', '.join(lacking)} is not installed" if lacking else ""


class Lab:
    """Hosts lab0, lab1 and lab2, as the desk's ~/.ssh/config calls them; each has a home of its own."""

    def __init__(self, base: Path) -> None:
        self.base, self.home = base, base / "desk"
        self.hosts = namespaces.Hosts(HOSTS + 1)
        self._servers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        return [f"lab{number}" for number in range(HOSTS)]

    @property
    def addresses(self) -> list[str]:
        return self.hosts.addresses[:HOSTS]

    def directory(self, number: int) -> Path:
        """Where runs lie on a host."""
        return self.base / f"lab{number}"

    def make(self) -> None:
        self.hosts.make()
        ssh = self.home / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        key(ssh / "id_ed25519")
        config, known = [], []
        for number, name in enumerate(self.hosts.names):
            namespaces.sh(f"ip -n {name} address add fd77::{number + 1}/64 dev cable nodad")
        for number, address in enumerate(self.addresses):
            host = self.directory(number)
            host.mkdir()
            key(host / "host_key")
            known.append(f"{address},fd77::{number + 1} {' '.join((host / 'host_key.pub').read_text().split()[:2])}")
            config.append(f"Host lab{number}\n  HostName {address}\n  User root")
            self._serve(number)
        (ssh / "config").write_text("\n".join(config) + "\n")
        (ssh / "known_hosts").write_text("\n".join(known) + "\n")
        for number, address in enumerate(self.addresses):
            until(lambda address=address: self._answers(address), 10, f"sshd of lab{number}")

    def _serve(self, number: int) -> None:
        host = self.directory(number)
        settings = {
            "Port": PORT,
            "HostKey": host / "host_key",
            "AuthorizedKeysFile": self.home / ".ssh" / "id_ed25519.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "Subsystem": "sftp internal-sftp",
            "SetEnv": f"PYTHONPATH={ROOT}:{sysconfig.get_path('purelib')} OMP_NUM_THREADS=1 PIP_NO_INDEX=1",
        }
        file = host / "sshd_config"
        file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        Path("/run/sshd").mkdir(exist_ok=True)
        command = ["ip", "netns", "exec", self.hosts.names[number], "/usr/sbin/sshd", "-D", "-f", str(file)]
        command += ["-E", str(host / "sshd.log")]
        self._servers[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _answers(self, address: str) -> bool:
        dial = f"import socket; socket.create_connection(('{address}', {PORT}), 1).close()"
        return not self.at_desk([sys.executable, "-c", dial], stderr=subprocess.DEVNULL).wait()

    def at_desk(self, command: list[str], **options: Any) -> "subprocess.Popen[str]":
        """A process on the desk."""
        env = os.environ | {"HOME": str(self.home), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[-40:]])}
        env.pop("SSH_AUTH_SOCK", None)
        command = ["ip", "netns", "exec", self.hosts.names[HOSTS], *command]
        return subprocess.Popen(command, env=env, text=True, **options)

    @contextmanager
    def cut(self, number: int) -> Iterator[None]:
        """Nothing from the desk reaches a host, as if somebody had pulled a cable; the hosts hear each other."""
        with self.hosts.rule(number, f"-s {self.hosts.addresses[HOSTS]}"):
            yield

    @contextmanager
    def shut(self, number: int) -> Iterator[None]:
        """Without its sshd, and without the connections that it had."""
        self._stop(self._servers[number])
        try:
            yield
        finally:
            self._serve(number)

    def pids(self, number: int | None = None) -> list[int]:
        """Peers and whatever else the launcher has left on a host, or on all."""
        wanted = range(HOSTS) if number is None else [number]
        directories = [str(self.directory(one)) for one in wanted]
        found = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            there = any(directory in line for directory in directories)
            if process.info["status"] != psutil.STATUS_ZOMBIE and "peer.cli" in line and there:
                found.append(process.info["pid"])
        return found

    def remove(self) -> None:
        for pid in self.pids():
            psutil.Process(pid).kill()
        for server in self._servers.values():
            self._stop(server)
        self.hosts.remove()

    def _stop(self, server: subprocess.Popen[bytes]) -> None:
        for process in (*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)):
            if "sshd" in process.name():
                process.kill()
        server.wait()


def key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
