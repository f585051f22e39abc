"""Keys that do not fit: why a host's own key is not accepted here, and why the host accepts none of the user's."""

import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.engines.ssh_hosts import Host, ssh_options

if TYPE_CHECKING:
    import asyncssh

SSH_PORT = 22
"""The port that known_hosts does not name."""


@dataclass(frozen=True)
class HostKey:
    """The key that a host has shown at this name, address and port."""

    name: str
    address: str
    port: int
    key: "asyncssh.SSHKey"

    def why_refused(self, host: Host) -> str:
        """Return whether no key is known or another, by their fingerprints, with a hint."""
        shown = self.key.get_fingerprint()
        known = sorted({key.get_fingerprint() for key in self._known(host)})
        if not known:
            return f"its host key {shown} is not known here; connect once by `ssh {host.host}`, which asks about it"
        name = self.name if self.port == SSH_PORT else f"[{self.name}]:{self.port}"
        return (
            f"its host key has changed: {' or '.join(known)} is known here, and it shows {shown}; ask who runs it "
            f"whether that is right, and only then forget the old one by `ssh-keygen -R {shlex.quote(name)}` and "
            f"connect once by `ssh {host.host}`"
        )

    def _known(self, host: Host) -> "list[asyncssh.SSHKey]":
        """Return the keys that are known for the host, of the same kind if there are any."""
        import asyncssh

        files = cast(list[str], ssh_options(host).known_hosts) or [str(Path("~/.ssh/known_hosts").expanduser())]
        listed = asyncssh.read_known_hosts([file for file in files if Path(file).is_file()])
        port = None if self.port == SSH_PORT else self.port
        keys = [*asyncssh.match_known_hosts(listed, self.name, self.address, port)[0]]
        return [key for key in keys if key.algorithm == self.key.algorithm] or keys


async def why_denied(host: Host) -> str:
    """Return why the host accepts none of the user's keys, with a hint. One that is locked may be the right one."""
    held = await _held_by_agent(host)
    if not (locked := [str(path) for path in _key_files(host) if _is_locked(path, held)]):
        return (
            f"it accepts none of your keys; see that `ssh {host.host}` works without a password (ssh-copy-id, ssh-add)"
        )
    return (
        f"it accepts none of your keys that can be used; {' and '.join(locked)} needs a passphrase, and no agent holds "
        f"it: `ssh-add {shlex.quote(locked[0])}` gives it to one"
    )


async def _held_by_agent(host: Host) -> set[bytes]:
    import asyncssh

    with suppress(OSError, ValueError, asyncssh.Error):
        async with asyncssh.connect_agent(ssh_options(host).agent_path or "") as agent:
            return {key.public_data for key in await agent.get_keys()}
    return set()


def _key_files(host: Host) -> list[Path]:
    """Return the files of private keys that ~/.ssh/config names for the host, or those by the usual names."""
    named = cast(list[str], ssh_options(host).config.get("IdentityFile", []))
    return [*map(Path, named)] or sorted(Path("~/.ssh").expanduser().glob("id_*"))


def _is_locked(path: Path, held: Collection[bytes]) -> bool:
    """Return whether the file holds a key with a passphrase that is not among those that an agent holds."""
    import asyncssh

    try:
        asyncssh.read_private_key(path)
    except asyncssh.KeyImportError as error:
        if not str(error).startswith("Passphrase"):
            return False
    except (OSError, ValueError):
        return False
    else:
        return False
    with suppress(OSError, asyncssh.KeyImportError):
        return asyncssh.read_public_key(f"{path}.pub").public_data not in held
    return not held
