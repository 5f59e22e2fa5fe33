"""A log of requests, one JSON object a line: what was asked, by whom, when, and what it used. Pure.

A line is a body in one of the shapes that `kvsdk.caching.bodies` reads, or has it as `request` or `body`.
Beside it may stand `session`, `at` and `usage` (or `response` with a `usage`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvsdk._text import excerpt
from kvsdk.caching.bodies import read_body
from kvsdk.errors import InvalidRequest
from kvsdk.prompt import Request
from kvsdk.usage import Usage

_TIMES = ("at", "timestamp", "time", "created_at", "created")
_MILLISECONDS_FROM = 1e11
"""A later second than any log has: what is larger counts milliseconds."""

_OPENAI_MODEL = re.compile(r"(?:^|[/:])(?:gpt-|chatgpt|o\d)")
_ADDRESS = re.compile(r"(?:anthropic|azure|(?:openai|vllm)(?:\+https?)?):")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One line.

    Attributes:
        line: Its number, from 1.
        request: What was asked.
        address: The backend, such as `"openai:gpt-5.6"`, as far as the line shows it.
        api: Of OpenAI's two, the one whose body this is.
        session: The conversation, by its name.
        cache_key: Its `prompt_cache_key`, which several conversations may share.
        at_s: When it was sent, in seconds since 1970.
        usage: What the answer said it used.
    """

    line: int
    request: Request
    address: str | None
    api: str | None
    session: str | None
    cache_key: str | None
    at_s: float | None
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request: its number and the reason."""

    line: int
    reason: str


def read_log(lines: Iterable[bytes]) -> Iterator[LoggedRequest | BadLine]:
    """Every line in order; empty ones are passed over. Holds one line at a time."""
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        try:
            yield _read(number, text)
        except InvalidRequest as error:
            yield BadLine(number, str(error))
        except RecursionError:
            yield BadLine(number, "it is nested too deeply")
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            yield BadLine(number, f"not understood ({type(error).__name__}: {excerpt(str(error), 80)})")


def _read(number: int, text: bytes) -> LoggedRequest:
    try:
        line = json.loads(text)
    except UnicodeDecodeError:
        raise InvalidRequest("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"it is not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(line, Mapping):
        raise InvalidRequest(f"it is no JSON object but a {type(line).__name__}")
    body = next((line[name] for name in ("request", "body") if isinstance(line.get(name), Mapping)), line)
    usage = _usage_of(line)
    vendor = _vendor(line, body, usage)
    model = body.get("model", line.get("model"))
    return LoggedRequest(
        number,
        read_body(body, vendor or "openai"),
        _address(vendor, None if model is None else str(model)),
        "responses" if "input" in body else "chat" if vendor == "openai" else None,
        _session(line, body),
        _name(body, "prompt_cache_key"),
        _at_s(line),
        None if usage is None else read_usage(usage),
    )


# ---------------------------------------------------------------------- whose, when


def _vendor(line: Mapping[str, Any], body: Mapping[str, Any], usage: Mapping[str, Any] | None) -> str | None:
    """The vendor whose body this is, by its model, its members, or its usage."""
    model = str(body.get("model", line.get("model")) or "")
    if "claude" in model or "anthropic_version" in body or "cache_read_input_tokens" in (usage or ()):
        return "anthropic"
    if _OPENAI_MODEL.search(model) or "input" in body:
        return "openai"
    return None


def _address(vendor: str | None, model: str | None) -> str | None:
    if model is None:
        return None
    return model if vendor is None or _ADDRESS.match(model) else f"{vendor}:{model}"


def _session(line: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    for where in (line, body):
        name = _name(where, "session")
        labels = where.get("metadata")
        if name is None and isinstance(labels, Mapping):
            name = _name(labels, "session")
        if name is not None:
            return name
    return None


def _name(where: Mapping[str, Any], key: str) -> str | None:
    value = where.get(key)
    if isinstance(value, Mapping):
        value = value.get("name", value.get("id"))
    return None if value is None or value == "" else str(value)


def _at_s(line: Mapping[str, Any]) -> float | None:
    name = next((name for name in _TIMES if line.get(name) is not None), None)
    if name is None:
        return None
    value = line[name]
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return value / 1000 if value >= _MILLISECONDS_FROM else float(value)
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(
        f"{name} is seconds or an ISO date and time, not {excerpt(repr(value), 40)}", field=name
    )


# ---------------------------------------------------------------------- what it used


def _usage_of(line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    response = line.get("response")
    inner = response.get("body", response) if isinstance(response, Mapping) else {}
    usage = line.get("usage")
    if usage is None and isinstance(inner, Mapping):
        usage = inner.get("usage")
    if usage is not None and not isinstance(usage, Mapping):
        raise InvalidRequest(f"usage is an object, not {type(usage).__name__}", field="usage")
    return usage


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """A usage in Anthropic's shape (the parts), OpenAI's (the total) or our own. A missing count is unknown.

    Raises:
        InvalidRequest: A count is no whole number.
    """
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        split = usage.get("cache_creation")
        return Usage.of_parts(
            fresh=_count(usage, "input_tokens"),
            read=_count(usage, "cache_read_input_tokens"),
            write=_count(usage, "cache_creation_input_tokens"),
            output=_count(usage, "output_tokens"),
            write_by_ttl=_by_ttl(
                split, {"5m": "ephemeral_5m_input_tokens", "1h": "ephemeral_1h_input_tokens"}
            ),
        )
    if "cache_read_tokens" in usage or "cache_write_tokens" in usage:
        return Usage.of_total(
            _count(usage, "input_tokens"),
            read=_count(usage, "cache_read_tokens"),
            write=_count(usage, "cache_write_tokens"),
            output=_count(usage, "output_tokens"),
        )
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    details = details if isinstance(details, Mapping) else {}
    write = _count(details, "cache_write_tokens")
    split = details.get("cache_write_tokens_details")
    return Usage.of_total(
        _count(usage, "prompt_tokens" if "prompt_tokens" in usage else "input_tokens"),
        read=_count(details, "cached_tokens"),
        write=0 if details and write is None else write,
        output=_count(usage, "completion_tokens" if "completion_tokens" in usage else "output_tokens"),
        write_by_ttl=_by_ttl(split, {"30m": "ttl_30m_tokens", "12h": "ttl_12h_tokens"}),
    )


def _by_ttl(split: Any, names: Mapping[str, str]) -> dict[str, int] | None:
    if not isinstance(split, Mapping):
        return None
    counts = {ttl: _count(split, name) for ttl, name in names.items()}
    return {ttl: count for ttl, count in counts.items() if count is not None}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(
            f"usage: {name} is a count, not {excerpt(repr(value), 40)}", field=f"usage.{name}"
        )
    return value
