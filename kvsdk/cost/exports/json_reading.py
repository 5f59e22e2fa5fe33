"""JSON of a vendor's report: its pages, and single fields with the place of a fault. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from kvsdk.errors import InvalidRequest

WHOLE = "save the endpoint's whole answer, with `data` and `has_more`"
_LARGEST_EXPONENT, _SMALLEST_EXPONENT = 15, -30


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the file, for messages."""

    file: str
    path: str = ""

    def __truediv__(self, key: str | int) -> Place:
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.path else key
        return Place(self.file, self.path + step)

    def wrong(self, what: str, todo: str) -> InvalidRequest:
        """The error of a fault at this place, with what to do."""
        where = f"{self.file}: {self.path}" if self.path else self.file
        return InvalidRequest(f"{where} {what}; {todo}", field=self.path or None)


# ---------------------------------------------------------------------- pages


def pages(content: str, file: Place) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Each page, with its place. JSON Lines are tried when the whole is no JSON but its first line is."""
    try:
        whole = _loads(content)
    except ValueError as error:
        lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):
            raise file.wrong(f"is no JSON ({error})", WHOLE) from error
        for number, line in lines:
            yield _page_of_line(line, Place(f"{file.file}, line {number}"))
        return
    if isinstance(whole, list):
        for index, page in enumerate(whole):
            yield file / index, _page(page, file / index)
    else:
        yield file, _page(whole, file)


def _page_of_line(line: str, place: Place) -> tuple[Place, Mapping[str, Any]]:
    try:
        return place, _page(_loads(line), place)
    except ValueError as error:
        raise place.wrong(f"is no JSON ({error})", WHOLE) from error


def _page(value: Any, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("data"), list):
        raise place.wrong("is no page of a report: it has no list `data`", WHOLE)
    return value


def _is_json(line: str) -> bool:
    try:
        _loads(line)
    except ValueError:
        return False
    return True


def _loads(content: str) -> Any:
    """JSON with exact numbers: dollars do not pass through a float."""
    try:
        return json.loads(content, parse_float=Decimal, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


# ---------------------------------------------------------------------- single fields


def part(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside another; nothing where it is absent."""
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def count(result: Mapping[str, Any], name: str, where: Place) -> int | None:
    """A whole number, not negative; None where the report does not say it."""
    value = result.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise (where / name).wrong(f"is {_short(value)}, which is no count", WHOLE)
    return value


def text(result: Mapping[str, Any], name: str, where: Place) -> str | None:
    """A name, safe to print to a terminal; None where the report does not say it."""
    value = result.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isprintable():
        raise (where / name).wrong("is no printable text", WHOLE)
    return value


def cents(result: Mapping[str, Any], name: str, where: Place) -> Decimal:
    """An exact amount in cents, as dollars."""
    return dollars(result, name, where).scaleb(-2)


def dollars(amount: Any, name: str, where: Place) -> Decimal:
    """An exact amount; its currency stands beside it."""
    if not isinstance(amount, dict):
        raise where.wrong("is no amount", WHOLE)
    currency = amount.get("currency")
    if not isinstance(currency, str) or currency.upper() != "USD":
        raise (where / "currency").wrong(f"is {_short(currency)}", "the ledger is in USD; export in USD")
    value = amount.get(name)
    number = _number(value)
    if number is None or (number and not _SMALLEST_EXPONENT <= number.adjusted() <= _LARGEST_EXPONENT):
        raise (where / name).wrong(f"is {_short(value)}, which is no amount", WHOLE)
    return number


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def moment(value: Any, where: Place) -> datetime:
    """A time, as seconds since 1970 or as RFC 3339 with a time zone."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        found = datetime.fromisoformat(value)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        pass
    raise where.wrong(f"is {_short(value)}, which is no time with a time zone", WHOLE)


def _short(value: Any) -> str:
    return repr(str(value)[:40])
