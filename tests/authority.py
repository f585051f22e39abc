"""Certificates as a CA of somebody's own makes them, right and wrong."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

CA = x509.BasicConstraints(ca=True, path_length=None)
NO_CA = x509.BasicConstraints(ca=False, path_length=None)


@dataclass(frozen=True)
class Holder:
    """Whoever has a certificate and its key; `chain` is what it shows with it."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    chain: tuple[x509.Certificate, ...] = ()

    @property
    def shown(self) -> bytes:
        return b"".join(cert.public_bytes(Encoding.PEM) for cert in (self.cert, *self.chain))

    @property
    def private(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def issue(
        self,
        *names: x509.GeneralName,
        called: str = "",
        more: tuple[x509.ExtensionType, ...] = (NO_CA,),
        begins: float = 0,
    ) -> "Holder":
        """A certificate for the alternative names, valid for a day that begins in so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        if names:
            more = (*more, x509.SubjectAlternativeName(names))
        return Holder(_sign(called, key, self.cert.subject, self.key, more, begins), key)

    def under(self, holder: "Holder") -> Self:
        """Shown together with the certificate that issued it."""
        return type(self)(self.cert, self.key, (holder.cert, *holder.chain))

    def write(self, directory: Path, id: str) -> None:
        (directory / f"{id}.pem").write_bytes(self.shown)
        (directory / f"{id}.key").write_bytes(self.private)


def authority(called: str = "CA", more: tuple[x509.ExtensionType, ...] = (CA,)) -> Holder:
    """A CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Holder(_sign(called, key, _name(called), key, more, begins=0), key)


def _sign(
    called: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    by: ec.EllipticCurvePrivateKey,
    more: tuple[x509.ExtensionType, ...],
    begins: float,
) -> x509.Certificate:
    start = datetime.now(UTC) - timedelta(minutes=5) + timedelta(days=begins)
    made = x509.CertificateBuilder().subject_name(_name(called)).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    made = made.not_valid_before(start).not_valid_after(start + timedelta(days=1))
    for extension in more:
        made = made.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return made.sign(by, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])
