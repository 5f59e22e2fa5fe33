"""What closing the books starts from: the bill's parts, and uses from a ledger."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from engine_times import AT, after, divide, measured
from kvsdk import Cost, InvalidRequest, Usage
from kvsdk.backend import Bill, EngineTime
from kvsdk.cost import Ledger, LedgerRow
from kvsdk.cost.engine.allocation import EngineBill, EngineUse, engine_uses
from kvsdk.cost.prices.machine import machine_cost

# ---------------------------------------------------------------------- what the engine costs


def test_a_bill_is_the_sum_of_its_parts() -> None:
    """Eight GPUs at 2.50, 2000 GB of memory at 0.0015, and 10000 GB stored at 0.0001: 20 + 3 + 1."""
    bill = EngineBill(
        gpu="H100",
        gpus=8,
        usd_per_gpu_hour="2.50",
        host_gb=2000,
        usd_per_host_gb_hour=0.0015,
        storage_gb=10_000,
        usd_per_storage_gb_hour="0.0001",
    )
    assert bill.usd_per_hour == 20 + 3 + 1
    assert bill.words == (
        "8 H100 at $2.5 + 2000 GB of memory at $0.0015 + 10000 GB stored at $0.0001 = $24 an hour"
    )
    assert EngineBill(usd_per_gpu_hour="2.50").words == "1 GPU at $2.5 = $2.5 an hour"
    assert EngineBill(usd_per_hour=0.1).usd_per_hour == Decimal("0.1")
    assert EngineBill(usd_per_hour=0).words == "$0 an hour"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({}, "usd_per_hour"),
        ({"usd_per_hour": "cheap"}, "usd_per_hour"),
        ({"usd_per_hour": -1}, "usd_per_hour"),
        ({"usd_per_hour": float("nan")}, "usd_per_hour"),
        ({"usd_per_hour": "1e999"}, "usd_per_hour"),
        ({"usd_per_hour": 1, "gpus": 2, "usd_per_gpu_hour": 1}, "usd_per_hour"),
        ({"gpu": "H100"}, "usd_per_gpu_hour"),
        ({"gpus": -1, "usd_per_gpu_hour": 1}, "gpus"),
        ({"host_gb": 5}, "usd_per_host_gb_hour"),
        ({"usd_per_storage_gb_hour": 5}, "storage_gb"),
    ],
)
def test_a_wrong_bill_names_what_is_wrong(wrong: dict[str, Any], field: str) -> None:
    """A part without its price, two prices, none, or no number."""
    with pytest.raises(InvalidRequest) as caught:
        EngineBill(**wrong)
    assert caught.value.field == field


# ---------------------------------------------------------------------- what a use can be


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"total_s": -1.5}, r"ends 1\.5 s before it starts"),
    ({"total_s": float("nan")}, "total_s is nan"),
    ({"total_s": float("inf")}, "total_s is inf"),
    ({"ttft_s": -1.0}, r"ttft_s is -1\.0"),
    ({"prefill_s": float("nan")}, "prefill_s is nan"),
    ({"decode_s": -0.1}, r"decode_s is -0\.1"),
    ({"queue_s": -3.0}, r"queue_s is -3\.0"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_a_use_that_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    """Negative times, and none."""
    with pytest.raises(InvalidRequest, match=words):
        measured(**wrong)


def test_an_unmeasured_use_needs_an_end() -> None:
    """Nothing else says how long it was."""
    with pytest.raises(InvalidRequest, match="when it ended"):
        EngineUse(id="t", at=AT, total_s=None, usage=Usage(output_tokens=5))


# ---------------------------------------------------------------------- from a ledger


def row(id: str, start: float, total_s: float | None, **changes: Any) -> LedgerRow:
    engine = EngineTime(prefill_s=0.5, decode_s=0.5, usd_per_hour=Decimal("3.6"))
    fields: dict[str, Any] = {
        "id": id,
        "operation_id": f"op-{id}",
        "attempt": 1,
        "at": after(start),
        "state": "ok",
        "backend": "vllm",
        "model": "smol",
        "usage": Usage.of_total(10, read=0, write=0, output=5),
        "bill": Bill(engine=engine),
        "cost": machine_cost(engine),
        "total_s": total_s,
        "session": "s",
        "tenant": "t",
    }
    return LedgerRow(**(fields | changes))


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger(tmp_path / "costs.db") as made:
        yield made


def test_rows_that_reach_into_the_period_are_read(ledger: Ledger) -> None:
    """One that began before and ends inside counts; one that ended at the start, or began at the end, not."""
    for id, start, total_s in (("a", -10, 10), ("b", -90, 91), ("c", -5, 4), ("d", 0, 1), ("e", 100, 1)):
        ledger.append(row(id, start, total_s))
    found = list(engine_uses(ledger, since=AT, until=after(100)))
    assert [use.id for use in found] == ["b", "d"]
    assert len(list(engine_uses(ledger))) == 5
    whole = divide(found, 100)
    assert [share.is_cut for share in whole.shares] == [True, False]
    assert whole.shares[1].total_usd == Decimal("0.001")


def test_only_the_engines_rows_are_read(ledger: Ledger) -> None:
    """Schemes that were asked for, each with its tokens and labels."""
    ledger.append(row("a", 0, 1))
    ledger.append(row("b", 0, 1, backend="vllm+http", bill=Bill(unpriced="-"), cost=Cost()))
    ledger.append(row("c", 0, 1, backend="anthropic", bill=Bill()))
    (use,) = engine_uses(ledger)
    assert isinstance(use, EngineUse)
    assert (use.id, use.operation_id, use.model, use.session, use.tenant) == ("a", "op-a", "smol", "s", "t")
    assert (use.backend, use.usage.output_tokens) == ("vllm", 5)
    (use,) = engine_uses(ledger, backends=["vllm+http"])
    assert isinstance(use, EngineUse)
    assert use.engine is None
    assert len(list(engine_uses(ledger, backends=["vllm", "vllm+http"]))) == 2


def test_a_row_that_cannot_be_is_skipped_with_its_reason(ledger: Ledger) -> None:
    """A clock that went back, seconds that are none, no answer: the report goes on and says so."""
    ledger.append(row("good", 0, 2))
    ledger.append(row("back", 0, -3.0))
    ledger.append(row("nan", 0, 2, bill=Bill(engine=EngineTime(prefill_s=float("nan"), decode_s=1.0))))
    ledger.append(row("failed", 0, 2, state="failed", usage=Usage(), bill=None, cost=Cost()))
    ledger.append(row("endless", 0, None, bill=Bill(unpriced="-"), cost=Cost()))
    ledger.append(row("later", 50, -3.0))
    found = divide(list(engine_uses(ledger, since=AT, until=after(10))), 10)
    assert [share.use.id for share in found.shares] == ["good"]
    assert {use.id: use.reason for use in found.skipped} == {
        "back": "it ends 3.0 s before it starts",
        "nan": "prefill_s is nan, which is no time",
        "failed": "no answer: neither its seconds nor its tokens are known",
        "endless": "it is not known when it ended",
    }


def test_the_ledgers_costs_are_the_shares(ledger: Ledger) -> None:
    """Seconds with many digits survive the ledger: each row's share is its cost, to the digit."""
    for number in range(20):
        engine = EngineTime(prefill_s=0.1 / (number + 3), decode_s=math.pi / 100, usd_per_hour=Decimal("2.5"))
        ledger.append(row(str(number), number, 1.0, bill=Bill(engine=engine), cost=machine_cost(engine)))
    found = divide(list(engine_uses(ledger)), 60, bill=EngineBill(usd_per_hour="2.5"))
    costs = {each.id: each.cost.total for each in ledger.rows()}
    assert {share.use.id: share.total_usd for share in found.shares} == costs
