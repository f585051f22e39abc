"""Federations with certificates, and callers that hold one of a member."""

from pathlib import Path

import grpc
from real_peers import SmallFederation
from wire_client import Caller

from launcher.certificate_files import certificate_files
from launcher.certificates import make_certificates


def secured(federation: SmallFederation) -> Path:
    """Certificates for all of its peers; where they lie."""
    certs = federation.directory / "certs"
    make_certificates(federation.spec, certs, days=2)
    for id in federation.ids:
        federation.configure(id, tls={name: str(path) for name, path in certificate_files(certs, id).items()})
    return certs


class Member(Caller):
    """A stream to `to`, by whoever holds the certificate of the member `id`."""

    def __init__(self, federation: SmallFederation, certs: Path, id: str, to: str, service: str = "Heartbeat") -> None:
        self.open(channel(federation, certs, id, to), service)


def channel(
    federation: SmallFederation, certs: Path, id: str, to: str, compression: grpc.Compression | None = None
) -> grpc.Channel:
    """From the member `id` to `to`."""
    files = {name: path.read_bytes() for name, path in certificate_files(certs, id).items()}
    credentials = grpc.ssl_channel_credentials(files["ca"], files["key"], files["cert"])
    options = [("grpc.ssl_target_name_override", to), ("grpc.max_send_message_length", -1)]
    return grpc.secure_channel(federation.address(to), credentials, options, compression)
