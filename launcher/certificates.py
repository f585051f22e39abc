"""Certificates of a federation: how `dfl-launch certs` makes them, and with which of them peers are asked.

There is a CA for the federation, and one certificate for each peer, made out to its id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.files import others_may_write, unwritable, write_atomically
from peer.network.transport.tls import CertificateBundle, CertificatePaths, fingerprint
from peer.spec.federation import Spec

AskingBundle = CertificateBundle | None
"""The certificates for asking peers; None if the run has none."""


@dataclass(frozen=True)
class Credentials:
    """What `--certs DIR` or `--tls CA CERT KEY` name, if anything; InputError if it is missing or unusable."""

    directory: Path | None = None
    files: tuple[Path, Path, Path] | None = None

    def any(self) -> AskingBundle:
        """Certificates of any peer, which are enough to ask all."""
        if self.files:
            return CertificatePaths.of_anybody(*self.files).read()
        if not self.directory:
            return None
        for key in sorted(self.directory.glob("*.key")):
            files = certificate_files(self.directory, key.stem)
            if files["cert"].exists():
                return CertificatePaths.of_anybody(**files).read()
        what = "give the directory of ca.pem, and one <id>.pem with <id>.key"
        raise InputError(f"{self.directory}: holds no certificate; {what}")

    def of(self, id: str) -> CertificatePaths | None:
        """A member's own certificates, as it obeys no others; None if there are none."""
        if self.files:
            found = CertificatePaths.of_anybody(*self.files)
            if found.id != id:
                cert, holder = self.files[1], found.id or "nobody"
                raise InputError(f"{cert}: is made out to {holder}; {id} obeys its own certificate only")
        elif self.directory:
            found = CertificatePaths(id, **certificate_files(self.directory, id))
        else:
            return None
        found.read()
        return found

    def holders(self, ids: Sequence[str]) -> Sequence[str]:
        """The peers with a certificate there; all where there are no certificates."""
        if self.files:
            return [CertificatePaths.of_anybody(*self.files).id]
        if self.directory:
            return [id for id in ids if certificate_files(self.directory, id)["key"].exists()]
        return ids


@unwritable()
def make_certificates(spec: Spec, directory: Path, days: float) -> str:
    """Write ca.pem, and <id>.pem with <id>.key for every peer; return the fingerprint of the CA.

    The CA's key is used once and kept nowhere. So the only way to admit another certificate is a new CA: run this
    again and copy the new files over the old ones, peer by peer; running peers take them up and from then on refuse
    the old ones.
    """
    if "ca" in spec.ids:
        raise InputError("no certificate can be made for the id `ca`: its file would be the CA's ca.pem; rename it")
    directory.mkdir(parents=True, exist_ok=True)
    if others_may_write(directory):
        raise InputError(
            f"{directory}: other users may write there, and so exchange the CA; close it by `chmod go-w`, or choose "
            "another directory with --out"
        )
    now = datetime.now(UTC)
    valid = now - timedelta(days=1), now + timedelta(days=days)  # clocks differ
    ca_key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{spec.name} CA")
    issuer = x509.AuthorityKeyIdentifier(_identifier(ca_key.public_key()).digest, None, None)
    ca = _builder(name, name, ca_key.public_key(), *valid, ca=True).sign(ca_key, hashes.SHA256())
    for member in spec.ring:
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        cert = (
            _builder(_name(member.id), name, key.public_key(), *valid, ca=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(member.id)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(issuer, critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_atomically(directory / f"{member.id}.key", pem, permissions=0o600)
        write_atomically(directory / f"{member.id}.pem", cert.public_bytes(Encoding.PEM))
    write_atomically(directory / "ca.pem", ca.public_bytes(Encoding.PEM))
    return fingerprint(ca)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, expires: datetime, ca: bool
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(expires)
        .add_extension(_identifier(key), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(_usage(ca), critical=True)
    )


def _identifier(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    """The identifier of a key by SHA-256 (RFC 7093, 2.1), whose beginning two operators compare."""
    bits = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return x509.SubjectKeyIdentifier(sha256(bits).digest()[:20])


def _usage(ca: bool) -> x509.KeyUsage:
    """A CA signs certificates, a peer its handshakes."""
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])
