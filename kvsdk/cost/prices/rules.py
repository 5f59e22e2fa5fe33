"""Prices that are not in the list: what it lacks or has wrong, and contracts. Read from TOML.

An adapter's `_facts.toml` and a user's own file have the same entries:

```toml
version = "2026-11"                 # names the file in every row of the ledger; without it, its digest does
[[prices]]
provider = "openai"                 # as genai-prices calls it; or host = "gateway.example.com"
models = ["gpt-6\\\\.1-.*"]            # patterns of the whole name
since = 2026-11-01                  # optional, as are until (that day not included), weekdays = ["sat"]
terms = { service_tier = "flex" }   # optional: only where the response says so; or a list of values
input_usd_per_mtok = "1.60"         # the rates themselves ...
cache_read_usd_per_mtok = "0.08"
cache_write_usd_per_mtok = { 30m = "2.00", 12h = "4.00" }
output_usd_per_mtok = "8.00"
source = "contract 4711"
date = 2026-11-01
```

Instead of rates an entry may have `factor` (times all rates), `write_factors` (writes by TTL, times the input
rate), `price_at` (the time of day, UTC, whose list price applies), `storage_usd_per_mtok_hour`,
`usd_per_call` (by server tool) or `estimated` (why the price may not be what is billed). A prompt's size may
be a condition: `above_input_tokens`. Entries apply in order, so a later one wins.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from re import Pattern
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvsdk.backend import Tariff
from kvsdk.errors import ConfigurationError

Price = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EFFECTS = frozenset(
    {
        "input_usd_per_mtok",
        "factor",
        "write_factors",
        "price_at",
        "storage_usd_per_mtok_hour",
        "usd_per_call",
        "estimated",
    }
)


class PriceRule(BaseModel):
    """One entry: when it applies, and what it does to a price. `name` says whose it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str | None = None
    host: str | None = None
    models: tuple[Pattern[str], ...] = Field(min_length=1)
    since: date | None = None
    until: date | None = None
    weekdays: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] | None = None
    terms: Mapping[str, str | tuple[str, ...]] = Field(default_factory=dict)
    above_input_tokens: int | None = Field(default=None, ge=0)

    input_usd_per_mtok: Price | None = None
    cache_read_usd_per_mtok: Price | None = None
    cache_write_usd_per_mtok: Mapping[str, Price] = Field(default_factory=dict)
    output_usd_per_mtok: Price | None = None
    factor: Price | None = None
    write_factors: Mapping[str, Price] = Field(default_factory=dict)
    price_at: time | None = None
    storage_usd_per_mtok_hour: Price | None = None
    usd_per_call: Mapping[str, Price] = Field(default_factory=dict)
    estimated: str | None = None

    source: str
    date: date
    name: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.model_fields_set
        if (self.provider is None) == (self.host is None):
            raise ValueError("an entry has either provider or host")
        if not given & _EFFECTS:
            raise ValueError("an entry has rates (input_usd_per_mtok ...), a factor, or another effect")
        if any(name.endswith("_usd_per_mtok") for name in given) and (
            self.input_usd_per_mtok is None or self.output_usd_per_mtok is None
        ):
            raise ValueError("rates need both input_usd_per_mtok and output_usd_per_mtok")
        return self

    @property
    def said(self) -> str:
        """Whose entry it is and of which day, as a price's source says it."""
        return f"{self.name} of {self.date}"

    def applies(self, tariff: Tariff, at: datetime) -> bool:
        """Whether it speaks of this tariff at this time; its terms and the prompt's size not regarded."""
        day = at.astimezone(UTC).date()
        return (
            (self.provider == tariff.provider if self.provider else self._is_host_of(tariff))
            and any(pattern.fullmatch(tariff.model) for pattern in self.models)
            and (self.since is None or day >= self.since)
            and (self.until is None or day < self.until)
            and (self.weekdays is None or _WEEKDAYS[day.weekday()] in self.weekdays)
        )

    def meets(self, terms: Mapping[str, str]) -> bool:
        """Whether all its terms are among these; a term may allow several values."""
        return all(
            terms.get(name) == value if isinstance(value, str) else terms.get(name) in value
            for name, value in self.terms.items()
        )

    def _is_host_of(self, tariff: Tariff) -> bool:
        return urlsplit(tariff.api_url or "").hostname == self.host


def read_rules(path: str | Path) -> tuple[PriceRule, ...]:
    """The entries of a file of one's own.

    Raises:
        ConfigurationError: It cannot be read, or an entry is wrong; the text names the entry and the key.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_bytes()
        content = tomllib.loads(text.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"the prices in {file} cannot be read: {error}") from error
    for key in content:
        if key not in ("version", "currency", "prices"):
            raise ConfigurationError(f"{file}: unknown key {key!r}; prices are in [[prices]] entries")
    currency = content.get("currency", "USD")
    if currency != "USD":
        raise ConfigurationError(
            f"{file}: currency {currency!r} is not known here; prices are in US dollars, convert them first"
        )
    version = content.get("version") or f"sha256 {sha256(text).hexdigest()[:12]}"
    return parse_rules(content.get("prices"), f"{file.name} {version}", str(file))


def parse_rules(entries: Any, name: str, where: str) -> tuple[PriceRule, ...]:
    """Entries as they stand in TOML; `name` is what a price's source calls them."""
    if not isinstance(entries, list):
        raise ConfigurationError(f"{where}: prices are tables: [[prices]]")
    rules = []
    for number, entry in enumerate(entries):
        try:
            rules.append(PriceRule.model_validate({**entry, "name": name}))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in (f"prices[{number}]", *first["loc"]))
            raise ConfigurationError(f"{where}: {place}: {first['msg']}") from error
    return tuple(rules)
