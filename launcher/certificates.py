"""`dfl-launch certs`: a CA for the federation and one certificate a peer, made out to its id."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peer.errors import InputError
from peer.files import others_may_write, unwritable, write_atomically
from peer.network.transport.tls import fingerprint
from peer.spec.federation import Spec


@unwritable()
def make_certificates(spec: Spec, directory: Path, days: int) -> str:
    """Write ca.pem, and <id>.pem with <id>.key for every peer; the fingerprint of the CA.

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
    ca_key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{spec.name} CA")
    issuer = x509.AuthorityKeyIdentifier(_identifier(ca_key.public_key()).digest, None, None)
    ca = (
        _builder(name, name, ca_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    for member in spec.ring:
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        cert = (
            _builder(_name(member.id), name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(member.id)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
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
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(_identifier(key), critical=False)
    )


def _identifier(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    """By SHA-256 (RFC 7093, 2.1): its beginning is what two operators compare."""
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
