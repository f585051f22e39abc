"""Which of the user's keys may be the right one where a host accepts none."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.engines.ssh_connection import why_denied
from launcher.engines.ssh_hosts import Host

pytest.importorskip("asyncssh")
pytestmark = pytest.mark.skipif(not shutil.which("ssh-agent"), reason="ssh-agent is not installed")


def sh(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = tmp_path / ".ssh" / "id_ed25519"
    made.parent.mkdir(mode=0o700)
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made)
    return made


def lock(key: Path) -> None:
    sh("ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key)


def test_a_key_without_a_passphrase_is_simply_not_accepted(key: Path) -> None:
    assert asyncio.run(why_denied(Host(host="north"))).startswith("it accepts none of your keys; see that `ssh north`")


def test_a_locked_key_is_named_unless_an_agent_holds_it(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"SSH_AUTH_SOCK=(\S+);.*SSH_AGENT_PID=(\d+);", sh("ssh-agent", "-s"), re.DOTALL)
    assert found
    monkeypatch.setenv("SSH_AUTH_SOCK", found[1])
    monkeypatch.setenv("SSH_AGENT_PID", found[2])
    try:
        sh("ssh-add", key)
        lock(key)
        assert "it accepts none of your keys; see that" in asyncio.run(why_denied(Host(host="north")))
        sh("ssh-add", "-D")
        assert f"{key} needs a passphrase, and no agent holds it" in asyncio.run(why_denied(Host(host="north")))
    finally:
        sh("ssh-agent", "-k")


def test_of_the_keys_only_that_of_the_host_counts(key: Path) -> None:
    lock(key)
    other = key.with_name("other")
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other)
    (key.parent / "config").write_text(f"Host north\n  IdentityFile {other}\n")
    assert "no agent" not in asyncio.run(why_denied(Host(host="north")))
    assert f"`ssh-add {key}`" in asyncio.run(why_denied(Host(host="south")))
