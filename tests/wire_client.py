"""A caller that speaks the wire by hand: raw gRPC streams, no part of the peer's own network in use."""

import queue
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Self

import grpc

from peer.network.wire.messages import SERVICE, Reply

OVER = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
SHOWN_OUT = (*OVER, grpc.StatusCode.UNAVAILABLE)
"""The codes for a stranger that sends too many bytes: its connection is closed, before or after a reply is read."""


class Caller:
    """One stream to a peer; what is said is bytes, right or wrong. It is over with one of the codes `over`, or orderly.

    with Caller("127.0.0.1:7700") as caller: reply = caller.say(hello)
    """

    _over: Collection[grpc.StatusCode] = OVER

    def __init__(self, address: str, service: str = "Tensors", over: Collection[grpc.StatusCode] = OVER) -> None:
        # Without a pool of its own it would call over the connection of the caller before, which may be shown out.
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._over = over
        self.open(grpc.insecure_channel(address, options=options), service)

    def open(self, channel: grpc.Channel, service: str) -> None:
        """The stream, over a channel of its own."""
        self._channel = channel
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = self._channel.stream_stream(f"/{SERVICE}/{service}")
        self._call = stream(self._requests(), timeout=20, wait_for_ready=True)

    def _requests(self) -> Iterator[bytes]:
        while (data := self._outgoing.get()) is not None:
            yield data

    def say(self, *messages: bytes) -> Reply | None:
        """Send the messages; the next reply, or None when the peer ends the stream without one."""
        for message in messages:
            self._outgoing.put(message)
        return self.hear()

    def hear(self) -> Reply | None:
        try:
            return Reply.FromString(next(self._call))
        except StopIteration:
            return None
        except grpc.RpcError as error:
            if error.code() in self._over:
                return None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()
