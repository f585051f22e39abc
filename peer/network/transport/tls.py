"""Certificates: who may connect, and as whom. Identity is the name in the certificate, mutually checked.

A missing, expired or foreign file is an error at the start, never a reason to go on in plaintext. Files may be
replaced while the peer runs: from then on the old ones are refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from peer.errors import InputError
from peer.telemetry.events import CertificatesChanged, Report

SHOWN = 300
"""Characters of names in another's certificate that are shown; an id has 64 at most."""


@dataclass(frozen=True)
class Chain:
    """The contents of the three files, checked to belong together."""

    ca: bytes
    cert: bytes
    key: bytes
    expires: datetime

    @property
    def server(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key, self.cert)], self.ca, require_client_auth=True)

    @property
    def channel(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


@dataclass(frozen=True)
class Certificates:
    """Where a peer's certificates lie."""

    id: str
    ca: Path
    cert: Path
    key: Path

    @classmethod
    def of_anybody(cls, ca: Path, cert: Path, key: Path) -> "Certificates":
        """Of whomever the certificate is made out to; InputError if it cannot be read."""
        return cls(holder(_certificate(cert, _bytes(cert))), ca, cert, key)

    def read(self) -> Chain:
        """Read and check the files; InputError names the file and the reason."""
        try:
            contents = {path: _bytes(path) for path in (self.ca, self.cert, self.key)}
        except InputError as error:
            raise InputError(
                f"{error}, or make certificates anew with `dfl-launch certs`, for all peers and `{self.id}` among them"
            ) from None
        ca, cert = _certificate(self.ca, contents[self.ca]), _certificate(self.cert, contents[self.cert])
        self._check(cert, ca)
        self._check_key(cert, contents[self.key])
        return Chain(contents[self.ca], contents[self.cert], contents[self.key], cert.not_valid_after_utc)

    @property
    def version(self) -> tuple[int, ...]:
        """Changes when a file is replaced."""
        return tuple(_changed(path) for path in (self.ca, self.cert, self.key))

    def _check(self, cert: x509.Certificate, ca: x509.Certificate) -> None:
        now = datetime.now(UTC)
        for path, certificate in ((self.ca, ca), (self.cert, cert)):
            if now > certificate.not_valid_after_utc:
                raise InputError(
                    f"{path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; make new ones"
                )
            if now < certificate.not_valid_before_utc:
                raise InputError(f"{path}: is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only")
        if (owner := holder(cert)) != self.id:
            raise InputError(f"{self.cert}: is made out to {owner or 'nobody'}, not to `{self.id}` alone")
        if not _both_ways(cert):
            raise InputError(f"{self.cert}: is for servers or for clients only, and a peer is both; make one for both")
        try:
            cert.verify_directly_issued_by(ca)
        except (InvalidSignature, ValueError, TypeError):
            raise InputError(
                f"{self.cert}: was not issued by the CA in {self.ca}; take both from one federation"
            ) from None

    def _check_key(self, cert: x509.Certificate, pem: bytes) -> None:
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            raise InputError(f"{self.key}: is not an unencrypted private key in PEM") from None
        known = isinstance(key, rsa.RSAPrivateKey) or (
            isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
        )
        if not known:  # the server would not open, or every handshake fail
            raise InputError(f"{self.key}: is a kind of key that gRPC does not take; make one of RSA, P-256 or P-384")
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if key.public_key().public_bytes(*form) != cert.public_key().public_bytes(*form):
            raise InputError(f"{self.key}: is not the key of {self.cert}")


class Security:
    """The certificates in use, for the server and for the channels of one peer."""

    def __init__(self, certificates: Certificates, names: Mapping[str, str], report: Report, look: float = 1.0) -> None:
        self._certificates, self._report, self._look = certificates, report, look
        self.names = names
        """Whose certificate is expected at each address."""
        self._version = certificates.version
        self._chain = certificates.read()

    @property
    def server(self) -> grpc.ServerCredentials:
        """Asks every caller for a certificate of the CA."""
        return self._chain.server

    @property
    def channel(self) -> grpc.ChannelCredentials:
        return self._chain.channel

    def holder(self, pem: bytes = b"") -> str:
        """Whom a caller's certificate, checked by TLS, is made out to; "" is nobody, not anybody."""
        try:
            return holder(x509.load_pem_x509_certificate(pem))
        except ValueError:
            return ""

    async def watch(self, renew: Callable[[], Awaitable[None]]) -> None:
        """Take up new files, looked for every `look` seconds; half-written or wrong ones are reported and passed over.

        Should somebody take the peer's address in the moment between two servers, it says so until that has ended.
        """
        while True:
            await asyncio.sleep(self._look)
            version = self._certificates.version
            if version == self._version:
                continue
            try:
                self._chain = self._certificates.read()
            except InputError as error:
                self._version = version
                self._report(CertificatesChanged(sentence=f"the new certificates are not used: {error}"))
                continue
            try:
                await renew()
            except InputError as error:
                self._report(CertificatesChanged(sentence=str(error)))
                continue
            self._version = version
            self._report(CertificatesChanged(sentence=f"new certificates, valid until {self._chain.expires:%Y-%m-%d}"))


def holder(cert: x509.Certificate) -> str:
    """The one DNS name in a certificate. Several are all given, and so it is nobody's: no id has a comma."""
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return ""
    return ", ".join(names.get_values_for_type(x509.DNSName))[:SHOWN]


def _both_ways(cert: x509.Certificate) -> bool:
    try:
        usages = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(usages)


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0  # being replaced just now


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); correct the path under `tls`") from None


def _certificate(path: Path, pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise InputError(f"{path}: is not a certificate in PEM") from None
