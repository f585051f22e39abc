"""Certificates: which peers may connect, and as which member. Identity is the certificate's name, checked by both ends.

A missing, expired or foreign file is an error at the start, never a reason to go on in plaintext. Files may be
replaced while the peer runs; from then on the old ones are refused.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from peer.errors import InputError, NotNowError
from peer.network.transport import OTHER_NAME, UNTRUSTED
from peer.network.transport.addresses import split
from peer.network.wire.messages import sanitise
from peer.tasks import within
from peer.telemetry.events import CertificateExpires, CertificatesChanged, Report

Extension = TypeVar("Extension", bound=x509.ExtensionType)
UNREADABLE = (ValueError, x509.InvalidVersion)
"""What is raised for bytes that are no certificate."""
MAX_NAME_CHARACTERS = 300
"""Characters of the names in another peer's certificate that are shown; an id has at most 64."""
FETCH_TIMEOUT_S = 3.0
"""Seconds in which a server must show its certificate."""
COMPARISON_VALID_S = 10.0
"""Seconds for which a comparison is reused, as a peer dials many times."""
FINGERPRINT_DIGITS = 16
"""Digits of a fingerprint that are shown: as many as can be read out on the phone."""
DAY_S = 86_400.0
WARNING_DAYS = (0, 1, 7, 30)
"""Days before certificates expire at which that is reported; 0: once they have."""
LONGEST_SLEEP_S = 3600.0
"""Seconds after which a clock that was set meanwhile is noticed."""


@dataclass(frozen=True)
class Validity:
    """When the certificate in a file is valid."""

    path: Path
    begins: datetime
    expires: datetime

    def problem(self, now: datetime) -> str:
        """Say why the certificate is not valid at that time; empty if it is."""
        if now > self.expires:
            return f"expired on {self.expires:%Y-%m-%d %H:%M} UTC; make new ones"
        if now < self.begins:
            return f"is valid from {self.begins:%Y-%m-%d %H:%M} UTC only; set the clock, or make new ones"
        return ""


@dataclass(frozen=True)
class CertificateBundle:
    """The contents of the three files, which were checked to belong together, and when the certificates are valid."""

    ca: bytes
    cert: bytes
    key: bytes
    validities: tuple[Validity, ...]

    @property
    def first_to_expire(self) -> Validity:
        return min(self.validities, key=lambda one: one.expires)

    @property
    def expires(self) -> datetime:
        return self.first_to_expire.expires

    def problem(self, now: datetime) -> str:
        """Say which certificate is not valid at that time, and why; empty if all are."""
        return next((f"{one.path}: {why}" for one in self.validities if (why := one.problem(now))), "")

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the CA, short enough to be read out on the phone."""
        return fingerprint(x509.load_pem_x509_certificate(self.ca))

    async def compared(self, why: str, address: str, id: str) -> str:
        """Say why the connection to `id` failed: this peer's own certificate, if that is not valid any more; else with
        the CA and dates of both certificates; only `why` if it shows none."""
        for one in self.validities:
            if own := one.problem(datetime.now(UTC)):  # without the path, as the other end is told why
                return f"this peer's own certificate is not valid now ({one.path.name}: {own})"
        if (theirs := await fetch_certificate(address, id)) is None:
            return why
        try:
            said, valid = self._problem(theirs, id) if why == UNTRUSTED else why, validity(theirs)
            ca, owner = fingerprint_of_issuer(theirs), sanitise(subject_of(theirs) or "nobody", 64)
        except (ValueError, TypeError):  # invalid dates, or an invalid name or identifier of a CA
            return why
        ours = validity(x509.load_pem_x509_certificate(self.cert))
        return (
            f"{said}: made out to `{owner}`, {valid}, by the CA {ca}; this peer's is {ours}, by the CA "
            f"{self.fingerprint}; compare them with its operator"
        )

    def _problem(self, theirs: x509.Certificate, id: str) -> str:
        now, ca = datetime.now(UTC), x509.load_pem_x509_certificate(self.ca)
        try:
            theirs.verify_directly_issued_by(ca)
        except (InvalidSignature, ValueError, TypeError):
            return "its certificate is of another CA"
        if now > theirs.not_valid_after_utc:
            return "its certificate has expired by this peer's clock"
        if now < theirs.not_valid_before_utc:
            return "its certificate is not valid yet by this peer's clock"
        return UNTRUSTED if subject_of(theirs) == id else OTHER_NAME

    @property
    def server(self) -> grpc.ServerCredentials:
        """The server's credentials, which demand a certificate of the CA from every caller."""
        return grpc.ssl_server_credentials([(self.key, self.cert)], self.ca, require_client_auth=True)

    @property
    def channel(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


@dataclass(frozen=True)
class CertificatePaths:
    """The paths of a peer's certificate files."""

    id: str
    ca: Path
    cert: Path
    key: Path

    @classmethod
    def of_anybody(cls, ca: Path, cert: Path, key: Path) -> "CertificatePaths":
        """The paths for the member that the certificate names; InputError if it cannot be read."""
        return cls(subject_of(_certificate(cert, _read_bytes(cert))), ca, cert, key)

    def read(self) -> CertificateBundle:
        """Read and check the files; InputError names the file and the reason."""
        try:
            contents = {path: _read_bytes(path) for path in (self.ca, self.cert, self.key)}
        except InputError as error:
            raise InputError(
                f"{error}, or make certificates anew with `dfl-launch certs`, for all peers and `{self.id}` among them"
            ) from None
        ca, cert = _certificate(self.ca, contents[self.ca]), _certificate(self.cert, contents[self.cert])
        valid = tuple(
            Validity(path, one.not_valid_before_utc, one.not_valid_after_utc)
            for path, one in ((self.cert, cert), (self.ca, ca))
        )
        bundle = CertificateBundle(contents[self.ca], contents[self.cert], contents[self.key], valid)
        if problem := bundle.problem(datetime.now(UTC)):
            raise NotNowError(problem)
        self._check(cert, ca)
        self._check_key(cert, contents[self.key])
        return bundle

    @property
    def version(self) -> tuple[int, ...]:
        """The files' times of modification, which change when a file is replaced."""
        return tuple(_modified_at(path) for path in (self.ca, self.cert, self.key))

    def _check(self, cert: x509.Certificate, ca: x509.Certificate) -> None:
        if (owner := subject_of(cert)) != self.id:
            raise InputError(f"{self.cert}: is made out to {owner or 'nobody'}, not to `{self.id}` alone")
        if not _is_for_both_ends(cert):
            raise InputError(f"{self.cert}: is for servers or for clients only, and a peer is both; make one for both")
        try:
            cert.verify_directly_issued_by(ca)
        except (InvalidSignature, ValueError, TypeError):
            raise InputError(
                f"{self.cert}: was issued by the CA {fingerprint_of_issuer(cert)}, and that in {self.ca} is "
                f"{fingerprint(ca)}; take both from one federation"
            ) from None

    def _check_key(self, cert: x509.Certificate, pem: bytes) -> None:
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            raise InputError(f"{self.key}: is not an unencrypted private key in PEM") from None
        known = isinstance(key, rsa.RSAPrivateKey) or (
            isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
        )
        if not known:  # the server would not open, or every handshake would fail
            raise InputError(f"{self.key}: is a kind of key that gRPC does not take; make one of RSA, P-256 or P-384")
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if key.public_key().public_bytes(*form) != cert.public_key().public_bytes(*form):
            raise InputError(f"{self.key}: is not the key of {self.cert}")


class TlsCredentials:
    """The certificates in use, for the server and for the channels of one peer."""

    def __init__(
        self,
        certificates: CertificatePaths,
        names: Mapping[str, str],
        report: Report,
        look: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """look: seconds between two looks at the files. clock: tells Unix seconds."""
        self._certificates, self._report, self._look, self._clock = certificates, report, look, clock
        self.names = names
        """The member whose certificate is expected at each address."""
        self._version = certificates.version
        self.bundle = certificates.read()
        self._renewed = asyncio.Event()
        self._warned: tuple[CertificateBundle, int] | None = None
        """The certificates of the last warning, and its threshold in days."""
        self._compared: dict[str, tuple[float, CertificateBundle, str, str]] = {}
        """The last comparison for each address: its time, this peer's certificates, the failure and the result."""

    async def compared(self, why: str, address: str) -> str:
        """Say why a connection failed, like `CertificateBundle.compared`, whose results are reused for a while."""
        now = asyncio.get_running_loop().time()
        at, bundle, known, said = self._compared.get(address, (0.0, None, "", ""))
        if bundle is not self.bundle or known != why or now - at > COMPARISON_VALID_S:
            bundle = self.bundle
            said = await bundle.compared(why, address, self.names[address])
            self._compared[address] = now, bundle, why, said
        return said

    def subject(self, pem: bytes = b"") -> str:
        """The name in a caller's certificate, which TLS has checked; "" if there is none, which matches no peer."""
        try:
            return subject_of(x509.load_pem_x509_certificate(pem))
        except UNREADABLE:
            return ""

    async def watch(self, renew: Callable[[], Awaitable[None]]) -> None:
        """Look for new files every `look` seconds and use them; half-written or wrong ones are reported and skipped,
        those that are not valid yet are tried again.

        If another process takes the peer's address in the moment between two servers, that is reported until it ends.
        """
        refused = ""
        while True:
            await asyncio.sleep(self._look)
            version = self._certificates.version
            if version == self._version:
                continue
            try:
                self.bundle = self._certificates.read()
            except InputError as error:
                if not isinstance(error, NotNowError):
                    self._version = version
                if (why := f"{version}: {error}") != refused:  # what is valid by now may be wrong otherwise
                    self._report(CertificatesChanged(sentence=f"the new certificates are not used: {error}"))
                refused = why
                continue
            try:
                await renew()
            except InputError as error:
                self._report(CertificatesChanged(sentence=str(error)))
                continue
            self._version = version
            expires = self.bundle.expires
            sentence = f"new certificates, valid until {expires:%Y-%m-%d}"
            self._report(CertificatesChanged(sentence=sentence, expires=expires.timestamp()))
            self._renewed.set()

    async def watch_expiry(self) -> None:
        """Report at each threshold, once, that the certificates expire; of thresholds long passed only the last."""
        while True:
            self._renewed.clear()
            bundle, first = self.bundle, self.bundle.first_to_expire
            left = first.expires.timestamp() - self._clock()
            days = next((days for days in WARNING_DAYS if left <= days * DAY_S), None)
            if days is not None and self._warned != (bundle, days):
                self._warned = bundle, days
                expires, path = first.expires.timestamp(), str(first.path)
                self._report(CertificateExpires(file=path, expires=expires, days=days, left=round(left, 3)))
            waits = [left - days * DAY_S for days in WARNING_DAYS if left > days * DAY_S]
            await within(min([*waits, LONGEST_SLEEP_S]), self._renewed.wait())


def subject_of(cert: x509.Certificate) -> str:
    """The DNS name in a certificate. Several are joined by commas, so that they match no peer's id."""
    names = _extension(cert, x509.SubjectAlternativeName)
    return ", ".join(names.get_values_for_type(x509.DNSName))[:MAX_NAME_CHARACTERS] if names else ""


def _extension(cert: x509.Certificate, kind: type[Extension]) -> Extension | None:
    """An extension of a certificate; None if it has none that can be read."""
    try:
        return cert.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return None


def fingerprint(ca: x509.Certificate) -> str:
    """The fingerprint of a CA's key: its identifier, which the certificates that it issues also name."""
    known = _extension(ca, x509.SubjectKeyIdentifier) or x509.SubjectKeyIdentifier.from_public_key(ca.public_key())
    return _grouped_digits(known.digest)


def fingerprint_of_issuer(cert: x509.Certificate) -> str:
    """The fingerprint of the CA's key that a certificate names, whoever signed it."""
    issuer = _extension(cert, x509.AuthorityKeyIdentifier)
    if issuer and issuer.key_identifier:
        return _grouped_digits(issuer.key_identifier)
    return f"`{sanitise(cert.issuer.rfc4514_string(), 64)}`, which names no key"


def _grouped_digits(digest: bytes) -> str:
    digits = digest.hex()[:FINGERPRINT_DIGITS]
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def validity(cert: x509.Certificate) -> str:
    return f"valid {cert.not_valid_before_utc:%Y-%m-%d %H:%M} to {cert.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"


async def fetch_certificate(address: str, id: str) -> x509.Certificate | None:
    """Fetch the certificate that a server shows to any caller, without checking it; None if it shows none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            _, writer = await asyncio.open_connection(*split(address), ssl=context, server_hostname=id)
    except (OSError, TimeoutError, ValueError):
        return None
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    try:
        return x509.load_der_x509_certificate(der or b"")
    except UNREADABLE:
        return None


def _is_for_both_ends(cert: x509.Certificate) -> bool:
    try:
        usages = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(usages)


def _modified_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0  # being replaced just now


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        why = f"cannot be read ({error.strerror}); correct the path that `tls`, --tls or --certs names"
        raise InputError(f"{path}: {why}") from None


def _certificate(path: Path, pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except UNREADABLE:
        raise InputError(f"{path}: is not a certificate in PEM") from None
