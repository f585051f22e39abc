"""The protobuf messages of proto/dfl/v1/peer.proto, and the one place where those of other parties are read.

This is the only module that imports the generated stubs. Frames are read by `frames.decode`; everything else that
another party says goes through `UntrustedDecoder`, which limits its length and removes what could forge a line of a
log.
"""

from collections.abc import MutableMapping, MutableSequence
from math import inf, isfinite
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError as DecodeError
from google.protobuf.message import Message as Message

from peer.network.limits import Limits
from peer.network.wire.frames import BadFrameError
from peer.network.wire.stubs.dfl.v1 import peer_pb2
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Announced as Announced
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Answer as Answer
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Beat as Beat
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Hello as Hello
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Obstacle as Obstacle
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Position as Position
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Question as Question
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Refusal as Refusal
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Reply as Reply
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Resources as Resources
from peer.network.wire.stubs.dfl.v1.peer_pb2 import StatusReply as StatusReply
from peer.network.wire.stubs.dfl.v1.peer_pb2 import StatusRequest as StatusRequest
from peer.network.wire.stubs.dfl.v1.peer_pb2 import Welcome as Welcome
from peer.text import printable

SERVICE = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name

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
        return self._read(Hello, data, "its first message", self._most)

    def answer(self, data: bytes) -> Reply:
        """Read the answer to a hello, which lists all messages that have arrived: only the transport limits it."""
        reply = self._read(Reply, data, "its answer")
        if not reply.HasField("welcome") and not reply.HasField("refusal"):
            raise BadFrameError("its answer is neither a welcome nor a refusal")
        return reply

    def reply(self, data: bytes) -> Reply:
        """Read a reply that comes after a welcome."""
        reply = self._read(Reply, data, "what it answered", self._most_of_beat)
        self._clean_beat(reply.beat)
        return reply

    def beat(self, data: bytes) -> Beat:
        beat = self._read(Beat, data, "what it sent", self._most_of_beat)
        self._clean_beat(beat)
        return beat

    def question(self, data: bytes) -> Question:
        """Read the first message of a caller that asks about views."""
        return self._read(Question, data, "its question", self._most)

    def views(self, data: bytes) -> bytes:
        """Check the length of a request or reply about views, which `peer.views.statements` reads."""
        return self._checked(data, self._limits.views, "what it says about views")

    def view_answer(self, data: bytes) -> Answer:
        """Read the answer to a question about views."""
        return self._read(Answer, self.views(data), "its answer")

    def status(self, data: bytes) -> StatusReply:
        """Read the answer to a Status request, which may be as long as the transport allows."""
        reply = self._read(StatusReply, data, "its answer")
        del reply.outside[self._members :]
        lists: list[MutableSequence[Any]] = [reply.neighbours, reply.shortage.awaited]
        for told in filter(None, lists):  # to cut what is absent would make it present
            del told[self._members :]
            for one in told:
                self._clean(one)
        return reply

    def _clean_beat(self, beat: Beat) -> None:
        for one in beat.announced:
            self._clean(one)
        rates = beat.resources.bytes_per_second
        # These are only shown, and must leave room for all neighbours in the answer to a Status request.
        for peer in list(rates)[self._limits.rates :]:
            del rates[peer]

    def _checked(self, data: bytes, most: float, what: str) -> bytes:
        if len(data) > most:
            raise BadFrameError(f"{what} has {len(data)} bytes, and at most {most} belong there")
        return data

    def _read(self, kind: type[ControlMessage], data: bytes, what: str, most: float = inf) -> ControlMessage:
        """most: the bytes that it may have, where not only the transport limits it."""
        try:
            message = kind.FromString(self._checked(data, most, what))
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
