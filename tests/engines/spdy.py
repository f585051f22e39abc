"""The server's side of SPDY/3.1, as far as `kubectl exec` speaks it: streams that the client opens, and their data."""

import mmap
import socket
import struct
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path

DICTIONARY_BEGINS, DICTIONARY_BYTES = b"\x00\x00\x00\x07options\x00\x00\x00\x04head", 1423
SYN_STREAM, SYN_REPLY, PING, GOAWAY = 1, 2, 6, 7
FIN = 1


def dictionary(kubectl: Path) -> bytes:
    """What both ends know before the first header; kubectl has it in its own file. Empty where it is not there."""
    with kubectl.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(DICTIONARY_BEGINS)
        return content[place : place + DICTIONARY_BYTES] if place >= 0 else b""


class Session:
    """streams: the client's, by what they say they are for: stdin, stdout, stderr, error."""

    def __init__(self, connection: socket.socket, words: bytes) -> None:
        self._connection, self._sending = connection, threading.Lock()
        self._deflate, self._inflate = zlib.compressobj(zdict=words), zlib.decompressobj(zdict=words)
        self.streams: dict[str, int] = {}
        self._opened = threading.Condition()
        self.stdin: list[bytes] = []
        self.stdin_ended = threading.Event()
        self.gone = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def await_streams(self, *names: str) -> None:
        with self._opened:
            self._opened.wait_for(lambda: {*names} <= self.streams.keys() or self.gone.is_set(), 30)

    def send(self, name: str, data: bytes, last: bool = False) -> None:
        """OSError when the client has gone."""
        with self._sending:
            self._connection.sendall(
                struct.pack(">II", self.streams[name], (FIN if last else 0) << 24 | len(data)) + data
            )

    def _read(self) -> None:
        try:
            while True:
                self._frame(*struct.unpack(">II", self._exactly(8)))
        except OSError:
            self.gone.set()
            self.stdin_ended.set()

    def _frame(self, first: int, second: int) -> None:
        flags, content = second >> 24, self._exactly(second & 0xFFFFFF)
        if not first >> 31:
            if first == self.streams.get("stdin"):
                self.stdin.append(content)
                if flags & FIN:
                    self.stdin_ended.set()
            return
        kind = first & 0xFFFF
        if kind == SYN_STREAM:
            (stream,) = struct.unpack(">I", content[:4])
            headers = self._headers(self._inflate.decompress(content[10:]))
            self._control(SYN_REPLY, struct.pack(">I", stream) + self._empty_headers())
            with self._opened:
                self.streams[headers["streamtype"]] = stream
                self._opened.notify_all()
        elif kind == PING:
            self._control(PING, content)
        elif kind == GOAWAY:
            raise ConnectionResetError

    def _control(self, kind: int, content: bytes) -> None:
        with self._sending:
            self._connection.sendall(struct.pack(">HHI", 0x8003, kind, len(content)) + content)

    def _empty_headers(self) -> bytes:
        return self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def _headers(self, block: bytes) -> Mapping[str, str]:
        words, place = [], 4
        while place < len(block):
            (length,) = struct.unpack(">I", block[place : place + 4])
            words.append(block[place + 4 : place + 4 + length].decode())
            place += 4 + length
        return dict(zip(words[::2], words[1::2], strict=True))

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self._connection.recv(count - len(found))
            if not more:
                raise ConnectionResetError
            found += more
        return found
