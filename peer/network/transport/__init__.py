"""Byte pipes between peers. Everything above them is the same over gRPC and in one process."""

from peer.network.transport.base import Accept, DisconnectedError, Pipe, Service, Status, Transport

__all__ = ["Accept", "DisconnectedError", "Pipe", "Service", "Status", "Transport"]
