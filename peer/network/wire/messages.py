"""The protobuf messages of proto/dfl/v1/peer.proto; the only module that imports the generated stubs."""

from google.protobuf.message import DecodeError, Message

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

VERSION = 4
"""Of the wire contract; peers of different versions refuse each other, and a run that another has begun."""
DESCRIPTOR = peer_pb2.DESCRIPTOR
SERVICE = DESCRIPTOR.services_by_name["Peer"].full_name

__all__ = [
    "DESCRIPTOR",
    "SERVICE",
    "VERSION",
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
    "Welcome",
]
