"""Byte pipes between peers. Everything above them is the same over gRPC and in one process."""

import os

from peer.network.transport.base import (
    FORBIDDEN,
    NO_ROUTE,
    REFUSED,
    SERVICES,
    TIMED_OUT,
    BreachError,
    DisconnectedError,
    ListenConfig,
    LocallyClosedError,
    Pipe,
    Service,
    StatusHandler,
    StreamHandler,
    Transport,
)

__all__ = [
    "FORBIDDEN",
    "NO_ROUTE",
    "REFUSED",
    "SERVICES",
    "TIMED_OUT",
    "BreachError",
    "DisconnectedError",
    "ListenConfig",
    "LocallyClosedError",
    "Pipe",
    "Service",
    "StatusHandler",
    "StreamHandler",
    "Transport",
]

# Read once, when gRPC is imported. Its core would write into the log what a server says when it closes, word for word.
os.environ["GRPC_VERBOSITY"] = "NONE"
# A server keeps 20,000 sessions of TLS 1.2, 7 kB each, and gRPC lets nobody say that it shall keep none, nor which
# version it speaks. This is the one suite of that version, for secrets shared beforehand, which nobody has: so TLS 1.3,
# whose sessions are kept by the caller, is what is left.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
