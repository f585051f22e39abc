"""Members' keys and certificates, made once."""

from functools import cache

from authority import Holder, authority
from cryptography import x509

from peer.views.signing import CertifiedKeyring

FEDERATION = "the federation"


@cache
def ca(name: str) -> Holder:
    return authority(name)


@cache
def files(name: str, issuer: str) -> tuple[bytes, bytes, bytes]:
    """CA, certificate and key of the one with that name."""
    holder = ca(issuer).issue(x509.DNSName(name))
    return ca(issuer).shown, holder.shown, holder.private


def keyring(id: str, federation: str = FEDERATION, issuer: str = "CA", name: str | None = None) -> CertifiedKeyring:
    """A member's keyring. name: the name in its certificate, if it is another one."""
    return CertifiedKeyring(id, federation, lambda: files(name or id, issuer))
