"""Models of a report and of the ledger that are the same, though their ids differ by a date."""

from __future__ import annotations

import re

_SUFFIX = re.compile(r"[-@](\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


def pair_models(ledger: set[str], vendor: set[str]) -> tuple[dict[str | None, str], list[str]]:
    """The name of the line that each model is compared in, and notes on those that are not equal.

    Equal ids first; else an id without a date is any dated one of its name. Two dates are two models. Where a
    ledger's id may be several of the report's, these are one line, under the name without a date.
    """
    lines: dict[str | None, str] = {model: model for model in sorted(ledger | vendor)}
    notes = []
    for model in sorted(ledger - vendor):
        near = sorted(other for other in vendor if _may_be_same(model, other))
        free = [other for other in near if other not in ledger] or near
        if len(free) == 1:
            lines[model] = free[0]
            notes.append(f"{model!r} in the ledger is compared with {free[0]!r} in the report")
        elif free:
            base = _base(model)
            lines.update(dict.fromkeys((model, *free), base))
            several = " and ".join(repr(other) for other in free)
            notes.append(
                f"{model!r} in the ledger may be {several} in the report; they are one line, {base!r}"
            )
    return {model: lines.get(line, line) for model, line in lines.items()}, notes


def _may_be_same(one: str, other: str) -> bool:
    return _base(one) == _base(other) and not (_is_dated(one) and _is_dated(other))


def _base(model: str) -> str:
    return _SUFFIX.sub("", model)


def _is_dated(model: str) -> bool:
    return _base(model) != model and not model.endswith("latest")
