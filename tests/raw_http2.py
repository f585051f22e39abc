"""HTTP/2 by hand, frame by frame: gRPC's own client is too polite to attack anybody with."""

import socket
import ssl
import struct
from collections import defaultdict
from types import TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 4
"""A setting: how much may be sent on each stream unasked."""
LARGEST_FRAME = 16_384
PATIENCE = 5.0


def connect(address: str, origin: str = "127.0.0.1") -> socket.socket:
    """A plain connection from one of this machine's addresses."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=(origin, 0))


def field(name: str, value: str) -> bytes:
    """A header as it is, neither compressed nor remembered; `\\udcff` stands for the byte 255, which is no text."""
    parts = (text.encode(errors="surrogateescape") for text in (name, value))
    return b"\0" + b"".join(_length(len(part)) + part for part in parts)


def _length(count: int) -> bytes:
    if count < 127:
        return bytes([count])
    rest, encoded = count - 127, b"\x7f"
    while rest >= 128:
        rest, encoded = rest >> 7, encoded + bytes([rest & 127 | 128])
    return encoded + bytes([rest])


def request(path: str) -> bytes:
    """The headers of a gRPC call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "peer"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(field(name, value) for name, value in fields.items())


def prefix(length: int, compressed: bool = False) -> bytes:
    """What stands before each gRPC message: how long it is to be."""
    return struct.pack(">?I", compressed, length)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def questions(path: str, count: int, message: bytes, headers: bytes = b"") -> bytes:
    """All that a connection needs to say for so many whole calls."""
    said = PREFACE + frame(SETTINGS, 0, 0)
    for stream in range(1, 2 * count, 2):
        said += frame(HEADERS, END_HEADERS, stream, request(path) + headers)
        pieces = [message[at : at + LARGEST_FRAME] for at in range(0, len(message), LARGEST_FRAME)]
        said += b"".join(frame(DATA, 0, stream, piece) for piece in pieces) + frame(DATA, END_STREAM, stream)
    return said


class RawConnection:
    """One connection; what is sent is right, wrong or unfinished, as the caller likes."""

    def __init__(self, connected: socket.socket, settings: dict[int, int] | None = None) -> None:
        self.socket = connected
        connected.settimeout(PATIENCE)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.window: defaultdict[int, int] = defaultdict(lambda: self.settings[INITIAL_WINDOW])
        """How much may be sent on each stream, and on 0 in all."""
        self.ended: set[int] = set()
        """Streams that the other end has closed."""
        self.settings = {INITIAL_WINDOW: 65_535}
        """What the other end asks for."""
        self.answers: defaultdict[int, bytes] = defaultdict(bytes)
        self.headers: defaultdict[int, bytes] = defaultdict(bytes)
        """What came on each stream, those at its end included."""
        self.closed = False
        self.window[0] = 65_535
        self._received = b""
        self._stream = -1
        self.send(PREFACE)
        self.frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *one) for one in (settings or {}).items()))

    def send(self, data: bytes) -> None:
        """Nothing is said of a connection that is closed but that it is."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self.send(frame(kind, flags, stream, payload))

    def call(self, path: str, headers: bytes = b"") -> int:
        """Open a stream to a method; its number."""
        self._stream += 2
        self.frame(HEADERS, END_HEADERS, self._stream, request(path) + headers)
        return self._stream

    def data(self, stream: int, content: bytes, end: bool = False) -> bool:
        """Send on a stream as much as the other end lets through; whether that was all."""
        while content and not self.closed and stream not in self.ended:
            count = min(len(content), LARGEST_FRAME, self.window[stream], self.window[0])
            if count <= 0:
                if not self.hear(0.2):
                    return False
                continue
            self.frame(DATA, END_STREAM if end and count == len(content) else 0, stream, content[:count])
            self.window[stream] -= count
            self.window[0] -= count
            content = content[count:]
            self.hear(0)
        return not content

    def hear(self, seconds: float) -> bool:
        """Take in what has come, waiting so long for something; whether anything came."""
        self.socket.settimeout(seconds)
        came = b""
        try:
            came = self.socket.recv(1 << 16)
            self.closed |= not came
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self.closed = True
        self.socket.settimeout(PATIENCE)
        self._received += came
        while len(self._received) >= 9 and len(self._received) >= (end := 9 + int.from_bytes(self._received[:3])):
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            self._take(kind, flags, stream, self._received[9:end])
            self._received = self._received[end:]
        return bool(came)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW:
                    for open in self.window.keys() - {0}:
                        self.window[open] += value - self.settings[INITIAL_WINDOW]
                self.settings[name] = value
            self.frame(SETTINGS, ACK, 0)
        elif kind == WINDOW_UPDATE:
            self.window[stream] += int.from_bytes(payload)
        elif kind == PING and not flags & ACK:
            self.frame(PING, ACK, 0, payload)
        elif kind == GOAWAY:
            self.closed = True
        elif kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)
        if kind in (DATA, HEADERS):
            (self.answers if kind == DATA else self.headers)[stream] += payload

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
