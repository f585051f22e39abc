"""What a member must never forget about views, on its disk (rule V1), and the keys with which it signs.

Both outlive a process: a restarted peer is bound by its promises, and signatures under an earlier CA stay valid.
"""

from dataclasses import asdict, replace
from pathlib import Path

from peer.errors import FailedError, InputError
from peer.files import read, sync, write_atomically
from peer.runtime.setup import Setup
from peer.spec.agreement import lasting_digest
from peer.spec.recordings import VIEWS, OtherFormatError, read_memory
from peer.tasks import in_thread
from peer.views.decision import Acceptor, Memory, Rules
from peer.views.signing import CertifiedKeyring, Keyring
from peer.views.statements import InvalidError, canonical


class ViewStore:
    """The file views.json in a peer's directory, with what a member must never forget about views."""

    def __init__(self, path: Path, memory: Memory) -> None:
        self.path, self.memory = path, memory

    @classmethod
    def open(cls, directory: Path, id: str) -> "ViewStore":
        """Read the file; FailedError if it is damaged, as a forgotten promise could split the federation."""
        path = directory / VIEWS
        try:
            memory = read_memory(read(path))
            sync(directory)  # a process that was killed after it had renamed the file may not have done so
        except FileNotFoundError:
            return cls(path, Memory(id))
        except OSError as error:
            raise FailedError(f"{path}: cannot be read ({error.strerror})") from None
        except OtherFormatError as error:
            raise FailedError(f"{path}: {error}") from None
        except InvalidError as error:
            raise FailedError(
                f"{path}: is damaged ({error}), and it held this peer's promises; remove {directory} and start this "
                "peer again: then the others admit it again"
            ) from None
        if memory.id != id:
            raise FailedError(f"{path}: belongs to {memory.id}, not to {id}; put {id}'s own file in its place")
        return cls(path, memory)

    def acceptor(self, rules: Rules, keyring: Keyring) -> Acceptor:
        """Return an acceptor that goes on from this memory; FailedError if a view in it has no proof."""
        for pem in self.memory.authorities:
            keyring.trust(pem)
        try:
            return Acceptor(self.memory, rules, keyring)
        except InvalidError as error:
            raise FailedError(
                f"{self.path}: holds a view without proof that it was decided ({error}): it was decided without "
                f"certificates or with those of another CA, or is damaged; use the certificates with which the run "
                f"began, or remove {self.path.parent} and start this peer again: then the others admit it again"
            ) from None

    async def save(self) -> None:
        """Write the memory as it is at the call; it is on disk when this returns."""
        memory = self.memory
        memory = replace(memory, decisions=[*memory.decisions], consents=[*memory.consents], guilt=[*memory.guilt])
        await in_thread(self.write, memory)

    def write(self, memory: Memory) -> None:
        write_atomically(self.path, canonical(asdict(memory)))  # seconds for thousands of views
        sync(self.path.parent)


def view_keyring(setup: Setup) -> Keyring:
    """Return a keyring that signs with the certificate files as they are at each use, as they may be renewed."""
    id, tls, federation = setup.config.id, setup.config.tls, lasting_digest(setup.spec.agreement.digests)
    if tls is None:
        return Keyring(id, federation, rewinds=setup.spec.rewind_views)
    from peer.network.transport.tls import CertificatePaths  # loads X.509

    certificates = CertificatePaths(id, tls.ca, tls.cert, tls.key)
    last: tuple[tuple[int, ...], tuple[bytes, bytes, bytes]] | None = None

    def files() -> tuple[bytes, bytes, bytes]:
        """Return the last files that belong together, as they may just be being replaced."""
        nonlocal last
        version = certificates.version
        if last is None or last[0] != version:
            try:
                chain = certificates.read()
            except InputError:
                if last is None:
                    raise
                return last[1]
            last = version, (chain.ca, chain.cert, chain.key)
        return last[1]

    return CertifiedKeyring(id, federation, files, [_authority(path) for path in tls.earlier], setup.spec.rewind_views)


def _authority(path: Path) -> str:
    """Return a CA's certificate in PEM."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        load_pem_x509_certificate(content := path.read_bytes())
        return content.decode()
    except (OSError, ValueError):
        raise InputError(
            f"{path}: `tls.earlier` names CA certificates in PEM, and this is not a readable one"
        ) from None
