"""The protobuf messages of proto/dfl/v1/peer.proto, and the one place where those of other parties are read.

This is the only module that imports the generated stubs. Frames are read by `frames.decode`; everything else that
another party says goes through `UntrustedDecoder`, which limits its length and removes what could forge a line of a
log.
"""

from collections.abc import MutableMapping
from math import isfinite
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from peer.network.limits import Limits
from peer.network.wire.frames import BadFrameError
from peer.network.wire.stubs.dfl.v1 import peer_pb2
from peer.network.wire.stubs.dfl.v1.peer_pb2 import (
    Announced,
    Answer,
    Beat,
    Hello,
    Obstacle,
    Position,
    Question,
    Refusal,
    Reply,
    Resources,
    StatusReply,
    StatusRequest,
    Welcome,
)
from peer.text import printable

DESCRIPTOR = peer_pb2.DESCRIPTOR
SERVICE = DESCRIPTOR.services_by_name["Peer"].full_name

__all__ = [
    "DESCRIPTOR",
    "SERVICE",
    "Announced",
    "Answer",
    "Beat",
    "DecodeError",
    "Hello",
    "Message",
    "Obstacle",
    "Position",
    "Question",
    "Refusal",
    "Reply",
    "Resources",
    "StatusReply",
    "StatusRequest",
    "UntrustedDecoder",
    "Welcome",
    "sanitise",
]

ControlMessage = TypeVar("ControlMessage", bound=Message)


def sanitise(text: str, most: int) -> str:
    """At most `most` characters of a text from another party, made safe to keep, write and show."""
    return printable(text[:most])


class UntrustedDecoder:
    """Reads control messages; each method raises BadFrameError for bytes that are not one, and says why."""

    def __init__(self, limits: Limits, members: int) -> None:
        self._limits, self._members = limits, members
        self._most = limits.control + limits.member * members
        self._most_of_beat = self._most + limits.announcement * members

    def hello(self, data: bytes) -> Hello:
        """Read the first message of a caller."""
        return self._short(Hello, data, "its first message")

    def answer(self, data: bytes) -> Reply:
        """Read the answer to a hello, which lists all messages that have arrived: only the transport limits it."""
        reply = self._read(Reply, data, "its answer")
        if not reply.HasField("welcome") and not reply.HasField("refusal"):
            raise BadFrameError("its answer is neither a welcome nor a refusal")
        return reply

    def reply(self, data: bytes) -> Reply:
        """Read a reply that comes after a welcome."""
        reply = self._read(Reply, self._checked(data, self._most_of_beat, "what it answered"), "what it answered")
        self._clean_beat(reply.beat)
        return reply

    def beat(self, data: bytes) -> Beat:
        beat = self._read(Beat, self._checked(data, self._most_of_beat, "what it sent"), "what it sent")
        self._clean_beat(beat)
        return beat

    def question(self, data: bytes) -> Question:
        """Read the first message of a caller that asks about views."""
        return self._short(Question, data, "its question")

    def views(self, data: bytes) -> bytes:
        """Check the length of a request or reply about views, which `peer.views.statements` reads."""
        return self._checked(data, self._limits.views, "what it says about views")

    def view_answer(self, data: bytes) -> Answer:
        """Read the answer to a question about views."""
        return self._read(Answer, self.views(data), "its answer")

    def status(self, data: bytes) -> StatusReply:
        """Read the answer to a Status request, which may be as long as the transport allows."""
        reply = self._read(StatusReply, data, "its answer")
        del reply.neighbours[self._members :]
        del reply.outside[self._members :]
        for neighbour in reply.neighbours:
            self._clean(neighbour)
        return reply

    def _clean_beat(self, beat: Beat) -> None:
        for one in beat.announced:
            self._clean(one)
        rates = beat.resources.bytes_per_second
        # These are only shown, and must leave room for all neighbours in the answer to a Status request.
        for peer in list(rates)[self._limits.rates :]:
            del rates[peer]

    def _short(self, kind: type[ControlMessage], data: bytes, what: str) -> ControlMessage:
        return self._read(kind, self._checked(data, self._most, what), what)

    def _checked(self, data: bytes, most: int, what: str) -> bytes:
        if len(data) > most:
            raise BadFrameError(f"{what} has {len(data)} bytes, and at most {most} belong there")
        return data

    def _read(self, kind: type[ControlMessage], data: bytes, what: str) -> ControlMessage:
        try:
            message = kind.FromString(data)
        except DecodeError:
            raise BadFrameError(f"{what} is no {kind.DESCRIPTOR.name}") from None
        self._clean(message)
        return message

    def _clean(self, message: Message) -> None:
        """Cut texts and make them printable; drop impossible numbers, such as a negative rate."""
        for field, value in message.ListFields():
            if field.message_type and field.message_type.GetOptions().map_entry:
                self._clean_map(value)
            elif field.type == FieldDescriptor.TYPE_MESSAGE and not field.is_repeated:
                self._clean(value)  # repeated messages hold only positions of frames, which are all valid numbers
            elif field.type == FieldDescriptor.TYPE_STRING and field.is_repeated:
                value[:] = [sanitise(text, self._limits.characters) for text in value[: self._limits.facts]]
            elif field.type == FieldDescriptor.TYPE_STRING:
                setattr(message, field.name, sanitise(value, self._limits.characters))
            elif field.type == FieldDescriptor.TYPE_DOUBLE and not _possible(value):
                message.ClearField(field.name)

    def _clean_map(self, entries: MutableMapping[str, Any]) -> None:
        kept = {sanitise(key, self._limits.characters): value for key, value in entries.items() if _possible(value)}
        entries.clear()
        entries.update(kept)


def _possible(value: object) -> bool:
    """Return whether a measured number is finite and not negative."""
    return not isinstance(value, float) or (isfinite(value) and value >= 0)
