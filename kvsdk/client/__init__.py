"""The clients: thin shells that open channels and drive flows."""

from kvsdk.client.aio import AsyncClient, AsyncSession, AsyncStream
from kvsdk.client.options import CallOptions
from kvsdk.client.sync import Client, Session, Stream

__all__ = ["AsyncClient", "AsyncSession", "AsyncStream", "CallOptions", "Client", "Session", "Stream"]
