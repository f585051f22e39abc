"""Hosts on this machine: network namespaces on a switch, with rates, losses, blocks and cables that can be pulled."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

TOOLS = ("ip", "tc", "iptables")


def missing() -> str:
    """Why there can be no hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in TOOLS if not shutil.which(tool)]
    if lacking:
        return f"{', '.join(lacking)} is not installed"
    probe = subprocess.run(["ip", "netns", "add", f"probe{os.getpid()}"], capture_output=True, text=True)
    if probe.returncode:
        return f"no network namespace can be made: {probe.stderr.strip()}"
    sh(f"ip netns del probe{os.getpid()}")
    return ""


def sh(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{command}: {done.stderr.strip()}")


class Hosts:
    """`count` hosts, 10.77.0.1 and so on, each with one cable to a switch in a namespace of its own."""

    def __init__(self, count: int) -> None:
        self._prefix = f"dfl{os.getpid()}"
        self.names = [f"{self._prefix}-{number}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self._switch = f"{self._prefix}-switch"

    def make(self) -> None:
        sh(f"ip netns add {self._switch}")
        sh(f"ip -n {self._switch} link add bridge type bridge")
        sh(f"ip -n {self._switch} link set bridge up")
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            sh(f"ip netns add {name}")
            sh(f"ip -n {name} link add cable type veth peer name port{number} netns {self._switch}")
            sh(f"ip -n {name} address add {address}/24 dev cable")
            sh(f"ip -n {name} link set lo up")
            sh(f"ip -n {name} link set cable up")
            sh(f"ip -n {self._switch} link set port{number} master bridge up")

    def remove(self) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @contextmanager
    def rate(self, host: int, mbit: float) -> Iterator[None]:
        """A slow line out of this host."""
        sh(f"ip netns exec {self.names[host]} tc qdisc add dev cable root tbf rate {mbit}mbit burst 16k latency 50ms")
        try:
            yield
        finally:
            sh(f"ip netns exec {self.names[host]} tc qdisc del dev cable root")

    @contextmanager
    def rule(self, host: int, rule: str) -> Iterator[None]:
        """An iptables rule for what reaches this host."""
        sh(f"ip netns exec {self.names[host]} iptables -A INPUT {rule} -j DROP")
        try:
            yield
        finally:
            sh(f"ip netns exec {self.names[host]} iptables -D INPUT {rule} -j DROP")

    @contextmanager
    def pulled(self, host: int) -> Iterator[None]:
        """Without its cable."""
        sh(f"ip -n {self.names[host]} link set cable down")
        try:
            yield
        finally:
            sh(f"ip -n {self.names[host]} link set cable up")

    @contextmanager
    def apart(self, some: Collection[int]) -> Iterator[None]:
        """These hosts and the others do not hear each other."""
        others = [host for host in range(len(self.names)) if host not in some]
        with ExitStack() as stack:
            for one, other in [(one, other) for one in some for other in others]:
                stack.enter_context(self.rule(one, f"-s {self.addresses[other]}"))
                stack.enter_context(self.rule(other, f"-s {self.addresses[one]}"))
            yield
