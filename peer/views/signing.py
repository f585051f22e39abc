"""Signatures of members, made with the keys of the certificates that they also use for connections.

A signature covers the federation (its settings and members), the signer and the statement, and travels with the
signer's certificate, so that the CA is enough to check it, even years later: a certificate's expiry does not affect
what was signed with it. A CA that this peer once trusted stays valid for statements of earlier rounds of the run,
though no longer for connections: its key is thrown away, and a key that was stolen before the certificates were
renewed makes one faulty member, as it did then.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from peer.views.statements import Signed, Statement, canonical
from peer.views.view import View

MAX_CHECKED_CERTIFICATES = 1024
"""How many checked certificates of others are remembered."""


class Keyring:
    """A keyring for a federation without certificates: nothing is signed, and every signer is believed."""

    signs = False
    """Whether there are signatures at all."""

    def __init__(self, id: str, federation: str, authorities: Iterable[str] = (), rewinds: Sequence[View] = ()) -> None:
        """id: the member that signs. federation: tells this run's federation from others, such as a digest of its
        settings. authorities: CAs (PEM) that this peer trusts or has trusted. rewinds: the views in which all go on
        after they went back past a change of members."""
        self.id, self.federation, self.pems = id, federation, list(dict.fromkeys(authorities))
        self._rewinds = rewinds

    def sign(self, statement: Statement) -> Signed[Statement]:
        return Signed(self.id, statement)

    def is_valid(self, signed: Signed[Statement]) -> bool:
        return True

    def trust(self, pem: str) -> None:
        if pem not in self.pems:
            self.pems.append(pem)

    def _signed_text(self, signer: str, statement: Statement) -> bytes:
        facts = asdict(statement)
        # What was signed in a view that a rewind has replaced must not count in the new one of its number.
        at = facts.get("number", facts.get("view", 0))
        epoch: list[Any] = [one.as_json() for one in self._rewinds if one.number <= at]
        federation = [self.federation, *epoch] if epoch else self.federation
        return canonical([federation, signer, type(statement).__name__, facts])


UNSIGNED = Keyring("", "")
"""Used where the members stay the same, so that no announcement needs proof."""


class CertifiedKeyring(Keyring):
    """Signs with the key of this member's certificate, and checks signatures against the trusted CAs."""

    signs = True

    def __init__(
        self,
        id: str,
        federation: str,
        files: Callable[[], tuple[bytes, bytes, bytes]] | None,
        authorities: Iterable[str] = (),
        rewinds: Sequence[View] = (),
    ) -> None:
        """files: returns CA, certificate and key (PEM); called at each use, as they may be renewed. None: this keyring
        only checks."""
        super().__init__(id, federation, authorities, rewinds)
        self._files = files
        self._loaded: tuple[tuple[bytes, bytes, bytes], object, str] | None = None
        self._checked: dict[str, tuple[str, object] | None] = {}
        """Holder and key of each certificate; None if no trusted CA has issued it."""
        self._load()

    def sign(self, statement: Statement) -> Signed[Statement]:
        self._load()
        assert self._loaded
        _, key, certificate = self._loaded
        signature = b64encode(_sign(key, self._signed_text(self.id, statement))).decode()
        return Signed(self.id, statement, signature, certificate)

    def is_valid(self, signed: Signed[Statement]) -> bool:
        self._load()
        certificate = signed.certificate
        if certificate not in self._checked:
            if len(self._checked) >= MAX_CHECKED_CERTIFICATES:
                self._checked.clear()
            self._checked[certificate] = _read_certificate(certificate, self.pems)
        found = self._checked[certificate]
        if found is None or found[0] != signed.signer:
            return False
        return _verifies(found[1], signed.signature, self._signed_text(signed.signer, signed.statement))

    def trust(self, pem: str) -> None:
        super().trust(pem)
        self._checked.clear()

    def _load(self) -> None:
        files = self._files() if self._files else None
        if files is None or (self._loaded and self._loaded[0] == files):
            return
        from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
        from cryptography.x509 import load_pem_x509_certificate

        ca, pem, key = files
        certificate = b64encode(load_pem_x509_certificate(pem).public_bytes(Encoding.DER)).decode()
        self._loaded = files, load_pem_private_key(key, password=None), certificate
        self.trust(ca.decode())


def _read_certificate(certificate: str, authorities: Iterable[str]) -> tuple[str, object] | None:
    """Return the holder and key of a certificate (base64 of DER); None unless a CA has issued it, for one holder."""
    from cryptography import x509

    try:  # whatever the parser raises for outside input, it is not a certificate
        found = x509.load_der_x509_certificate(b64decode(certificate, validate=True))
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        holders, key = names.get_values_for_type(x509.DNSName), found.public_key()
    except Exception:  # noqa: BLE001 (see above)
        return None
    for authority in authorities:
        try:
            found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
        except Exception:  # noqa: BLE001 (not issued by this CA)
            continue
        return (holders[0], key) if len(holders) == 1 else None
    return None


def _sign(key: object, text: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # gRPC takes no other keys, so they were refused at the start
    return key.sign(text, ec.ECDSA(hashes.SHA256()))


def _verifies(key: object, signature: str, text: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(b64decode(signature, validate=True), text, padding.PKCS1v15(), hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(b64decode(signature, validate=True), text, ec.ECDSA(hashes.SHA256()))
        else:
            return False
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True
