"""Who has signed what: by the keys of the certificates with which members also connect.

A signature covers the federation (its settings and members), the signer and the statement, and travels with the
signer's certificate, so that anybody who has the CA can check it, also years later: whether a certificate has expired
meanwhile changes nothing about what was signed with it. A CA that this peer once trusted stays good for statements of
earlier rounds of the run, though no longer for connections: its key is thrown away, and a key that was stolen before
the certificates were renewed is one faulty member, as it was.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import asdict

from peer.views.statements import Signed, Statement, canonical

CHECKED_CERTIFICATES = 1024
"""Certificates of others that are remembered as checked."""


class Authorities:
    """Checks signatures by the certificates of these CAs (PEM)."""

    signs = True
    """Whether there are signatures at all."""

    def __init__(self, federation: str, authorities: Iterable[str] = ()) -> None:
        """federation: what tells this run's federation from others, such as a digest of its settings."""
        self.federation, self.pems = federation, list(dict.fromkeys(authorities))
        self._checked: dict[str, tuple[str, object] | None] = {}

    def is_valid(self, signed: Signed[Statement]) -> bool:
        """Whether that member has signed that."""
        holder_and_key = self._holder_and_key(signed.certificate)
        if holder_and_key is None or holder_and_key[0] != signed.signer:
            return False
        return _verifies(holder_and_key[1], signed.signature, self.signed_text(signed.signer, signed.statement))

    def trust(self, pem: str) -> None:
        """One more CA."""
        if pem not in self.pems:
            self.pems.append(pem)
            self._checked.clear()

    def signed_text(self, signer: str, statement: Statement) -> bytes:
        return canonical([self.federation, signer, type(statement).__name__, asdict(statement)])

    def _holder_and_key(self, certificate: str) -> tuple[str, object] | None:
        """To whom it is made out, if one of the CAs has issued it."""
        if certificate not in self._checked:
            if len(self._checked) >= CHECKED_CERTIFICATES:
                self._checked.clear()
            self._checked[certificate] = _read_certificate(certificate, self.pems)
        return self._checked[certificate]


class Keyring(Authorities):
    """Signs as one member, and checks what others have signed. By itself it is that of a federation without
    certificates: nothing is signed, and everything is taken for what it says it is."""

    signs = False

    def __init__(self, id: str, federation: str, authorities: Iterable[str] = ()) -> None:
        super().__init__(federation, authorities)
        self.id = id

    def sign(self, statement: Statement) -> Signed[Statement]:
        return Signed(self.id, statement)

    def is_valid(self, signed: Signed[Statement]) -> bool:
        return True


UNSIGNED = Keyring("", "")
"""Where members stay the same, and so nothing is announced that must be proved."""


class CertifiedKeyring(Keyring):
    """With certificates."""

    signs = True

    def __init__(
        self, id: str, federation: str, files: Callable[[], tuple[bytes, bytes, bytes]], authorities: Iterable[str] = ()
    ) -> None:
        """files: CA, certificate and key in PEM, as they are now; asked for at each signature, as they may be renewed.
        authorities: CAs that this peer has trusted before."""
        super().__init__(id, federation, authorities)
        self._files = files
        self._loaded: tuple[tuple[bytes, bytes, bytes], object, str] | None = None
        self._load()

    def sign(self, statement: Statement) -> Signed[Statement]:
        key, certificate = self._load()
        signature = b64encode(_sign(key, self.signed_text(self.id, statement))).decode()
        return Signed(self.id, statement, signature, certificate)

    def is_valid(self, signed: Signed[Statement]) -> bool:
        self._load()
        return Authorities.is_valid(self, signed)

    def _load(self) -> tuple[object, str]:
        files = self._files()
        if self._loaded is None or self._loaded[0] != files:
            from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
            from cryptography.x509 import load_pem_x509_certificate

            ca, pem, key = files
            certificate = b64encode(load_pem_x509_certificate(pem).public_bytes(Encoding.DER)).decode()
            self._loaded = files, load_pem_private_key(key, password=None), certificate
            self.trust(ca.decode())
        return self._loaded[1], self._loaded[2]


def _read_certificate(certificate: str, authorities: Iterable[str]) -> tuple[str, object] | None:
    from cryptography import x509

    # Whatever the parser makes of what comes from outside: it is no certificate then.
    try:
        found = x509.load_der_x509_certificate(b64decode(certificate, validate=True))
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        holders, key = names.get_values_for_type(x509.DNSName), found.public_key()
    except Exception:  # noqa: BLE001 (see above)
        return None
    for authority in authorities:
        try:
            found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
        except Exception:  # noqa: BLE001 (not by this one)
            continue
        return (holders[0], key) if len(holders) == 1 else None
    return None


def _sign(key: object, text: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # gRPC takes no others, and so they were refused at the start
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
