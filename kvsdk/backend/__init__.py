"""What an adapter is: the protocol it keeps, what it says of itself, and how it is found."""

from kvsdk.backend.bill import Bill, BillLine, EngineTime, Tariff
from kvsdk.backend.cache_model import CacheBlock, CacheModel, Predicted
from kvsdk.backend.capabilities import Capabilities
from kvsdk.backend.discovery import BackendSpec, backend, reject_unknown_options, require_package
from kvsdk.backend.protocol import (
    Answer,
    AsyncChannel,
    AsyncEvents,
    Backend,
    Call,
    Channel,
    Events,
    Outcome,
    Reader,
)

__all__ = [
    "Answer",
    "AsyncChannel",
    "AsyncEvents",
    "Backend",
    "BackendSpec",
    "Bill",
    "BillLine",
    "CacheBlock",
    "CacheModel",
    "Call",
    "Capabilities",
    "Channel",
    "EngineTime",
    "Events",
    "Outcome",
    "Predicted",
    "Reader",
    "Tariff",
    "backend",
    "reject_unknown_options",
    "require_package",
]
