"""What an engine of one's own costs by the hour."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation

from kvsdk.errors import InvalidRequest

Price = Decimal | str | float | int

EXACT = Context(prec=1000, Emax=10**6, Emin=-(10**6))


@dataclass(frozen=True, slots=True, init=False)
class EngineBill:
    """What an engine costs by the hour: a sum, or its parts.

    Args:
        usd_per_hour: The whole machine. A float is read as it is written: 0.1 is 0.1.
        gpu: The GPU's name, for the words only.
        gpus: How many; 1 unless told.
        usd_per_gpu_hour: The price of one.
        host_gb: Memory of the host that is paid for.
        usd_per_host_gb_hour: The price of a gigabyte.
        storage_gb: Storage that is paid for.
        usd_per_storage_gb_hour: The price of a gigabyte.

    Attributes:
        usd_per_hour: The sum, exact.
        words: How it came about.

    Raises:
        InvalidRequest: A number is none or negative, or something is without its price.
    """

    usd_per_hour: Decimal
    words: str

    def __init__(
        self,
        *,
        usd_per_hour: Price | None = None,
        gpu: str | None = None,
        gpus: int | None = None,
        usd_per_gpu_hour: Price | None = None,
        host_gb: Price | None = None,
        usd_per_host_gb_hour: Price | None = None,
        storage_gb: Price | None = None,
        usd_per_storage_gb_hour: Price | None = None,
    ) -> None:
        if gpus is None and (gpu is not None or usd_per_gpu_hour is not None):
            gpus = 1
        parts = [
            _part("gpus", gpus, "usd_per_gpu_hour", usd_per_gpu_hour, gpu or "GPU"),
            _part("host_gb", host_gb, "usd_per_host_gb_hour", usd_per_host_gb_hour, "GB of memory"),
            _part("storage_gb", storage_gb, "usd_per_storage_gb_hour", usd_per_storage_gb_hour, "GB stored"),
        ]
        given = [part for part in parts if part is not None]
        if (usd_per_hour is None) == (not given):
            raise InvalidRequest(
                "say what the engine costs: either usd_per_hour, or usd_per_gpu_hour and other parts",
                field="usd_per_hour",
            )
        if usd_per_hour is not None:
            given = [(_number(usd_per_hour, "usd_per_hour"), "")]
        dollars = Decimal(0)
        for part, _ in given:
            dollars = EXACT.add(dollars, part)
        words = " + ".join(text for _, text in given if text)
        object.__setattr__(self, "usd_per_hour", dollars)
        object.__setattr__(self, "words", f"{words}{' = ' if words else ''}${_plain(dollars)} an hour")


def _part(
    name: str, count: Price | None, price_name: str, price: Price | None, noun: str
) -> tuple[Decimal, str] | None:
    """Dollars an hour of a part of the machine, and in words."""
    if count is None and price is None:
        return None
    if count is None or price is None:
        missing, there = (price_name, name) if price is None else (name, price_name)
        raise InvalidRequest(f"{there} is given without {missing}", field=missing)
    number, dollars = _number(count, name), _number(price, price_name)
    return EXACT.multiply(number, dollars), f"{_plain(number)} {noun} at ${_plain(dollars)}"


def _number(value: Price, name: str) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal(-1)
    if not number.is_finite() or number < 0 or abs(number.adjusted()) > 100:
        raise InvalidRequest(f"{name} is {value!r}, which is no number of 0 or more", field=name)
    return number


def _plain(number: Decimal) -> str:
    return f"{number.normalize(EXACT):f}" if number else "0"
