"""`kvsdk demo`: several questions about one long document, and what the cache saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsdk.cli.tables import Column, count, dollars, milliseconds, percent, show
from kvsdk.errors import InvalidRequest

if TYPE_CHECKING:
    from kvsdk.client import Session
    from kvsdk.reply import Cost, Reply

HOSTED = ("anthropic:claude-sonnet-5-5", "openai:gpt-6.1-terra")
QUESTIONS = (
    "Which valve is opened first when a pump is started?",
    "What must be done when lamp C is lit?",
    "Whom do you call when a motor overload trips again?",
)
INSTRUCTION = "Answer in one short sentence, only from this document."


def demo(
    document: Annotated[Path | None, typer.Option(help="A text file to ask about.")] = None,
    question: Annotated[
        list[str] | None, typer.Option(help="A question; may be given several times.")
    ] = None,
    usd_per_hour: Annotated[str, typer.Option(help="What this machine costs.")] = "0.10",
    ledger: Annotated[Path, typer.Option(help="Where the costs are written.")] = Path("kvsdk-demo.db"),
    model: Annotated[
        str | None, typer.Option(help="A checkpoint or a model's name, instead of the demo's own.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The longest answer.")] = 48,
) -> None:
    """Ask a local vLLM engine about one long document and show what its prefix cache saves."""
    import kvsdk
    from kvsdk.cli.demo_model import NAME, ensure_demo_model

    text, name = _read(document)
    kvsdk.backend(f"vllm:{model or NAME}").check()  # before anything that takes long
    questions = question or QUESTIONS
    target = model or str(ensure_demo_model())
    typer.echo(f"Starting vLLM in this process with {model or NAME} ...")
    options: dict[str, Any] = {} if model else {"max_model_len": 8192, "max_num_seqs": 4}
    address = f"vllm:{target}"
    with kvsdk.Client(address, ledger=ledger, usd_per_hour=usd_per_hour, **options) as client:
        client.count_tokens("Hello")  # starts the engine
        with kvsdk.Client(address, **options) as unrecorded:  # shares it
            unrecorded.generate("Hello", max_tokens=1)  # the first pass pays for the engine's warm-up
        session = client.session(f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}")
        typer.echo(f"\n{len(questions)} questions about {name}, whose end is a cache breakpoint:")
        replies = [_ask(session, text, item, max_tokens) for item in questions]
    _show(replies, usd_per_hour, ledger)
    typer.echo(f"The rows are in {ledger}; print them again with: kvsdk report {ledger} --by session")


def _read(document: Path | None) -> tuple[str, str]:
    if document is None:
        return files("kvsdk.cli").joinpath("data/manual.md").read_text("utf-8"), "a manual"
    try:
        text = document.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{document} cannot be read as text: {error}", field="document") from error
    if not text.strip():
        raise InvalidRequest(f"{document} is empty", field="document")
    return text, document.name


def _ask(session: Session, document: str, question: str, max_tokens: int) -> Reply:
    from kvsdk.prompt import Text

    typer.echo(f"\nQ: {question}\nA: ", nl=False)
    prefix = [Text(f"{INSTRUCTION}\n\n{document}", cache=True)]
    with session.stream(question, system=prefix, max_tokens=max_tokens, temperature=0) as stream:
        for piece in stream.text_stream:
            typer.echo(piece, nl=False)
    typer.echo()
    return stream.reply


@dataclass(frozen=True, slots=True)
class _Line:
    """One request of the table."""

    number: str
    reply: Reply
    hosted: tuple[Cost, ...]

    def row(self) -> dict[str, Any]:
        usage, cost = self.reply.usage, self.reply.cost
        read = usage.cache_read_tokens
        computed = None if usage.input_tokens is None or read is None else usage.input_tokens - read
        return {
            "number": self.number,
            "input": usage.input_tokens,
            "read": read,
            "computed": computed,
            "output": usage.output_tokens,
            "hit_rate": usage.hit_rate,
            "ttft": self.reply.latency.ttft_s,
            "cost": cost.total,
            "saved": cost.saved,
            **{address: hosted.total for address, hosted in zip(HOSTED, self.hosted, strict=True)},
        }


def _show(replies: Sequence[Reply], usd_per_hour: str, ledger: Path) -> None:
    hosted = _priced_elsewhere(replies, ledger)
    lines = [
        _Line(str(number), reply, hosted[reply.operation_id]).row() for number, reply in enumerate(replies, 1)
    ]
    columns = [
        Column("number", "request", is_number=False),
        Column("input", "input", count),
        Column("read", "read from cache", count),
        Column("computed", "computed", count),
        Column("output", "output", count),
        Column("hit_rate", "hit rate", percent),
        Column("ttft", "first token", milliseconds),
        Column("cost", "this machine", dollars),
        Column("saved", "cache saved", dollars),
        *(Column(address, address.partition(":")[2], dollars) for address in HOSTED),
    ]
    typer.echo()
    show("", columns, lines, _total(lines))
    typer.echo(
        f"this machine: ${usd_per_hour} per hour for the seconds the engine was busy. cache saved: what\n"
        "computing the cached tokens would have cost at the rate measured here. The hosted columns are\n"
        "estimates: list prices of the same counts, the document written to a cache once, then read.\n"
    )


def _priced_elsewhere(replies: Sequence[Reply], ledger: Path) -> dict[str, tuple[Cost, ...]]:
    """What each request would have cost on the hosted backends, by operation, from its row in the ledger."""
    from kvsdk.cost import Ledger
    from kvsdk.cost.reports.elsewhere import Elsewhere
    from kvsdk.reply import Cost

    others = [Elsewhere(address) for address in HOSTED]
    unknown = tuple(Cost(reason="its row is not in the ledger") for _ in HOSTED)
    costs = dict.fromkeys((reply.operation_id for reply in replies), unknown)
    with Ledger(ledger) as book:
        for row in book.rows(session=replies[0].session):
            if row.state == "ok":
                costs[row.operation_id] = tuple(other.cost(row) for other in others)
    return costs


def _total(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {"number": "total", "ttft": None}
    for key in ("input", "read", "computed", "output", "cost", "saved", *HOSTED):
        values = [line[key] for line in lines]
        start: Any = Decimal(0) if isinstance(values[0], Decimal) else 0
        total[key] = None if None in values else sum(values, start)
    total["hit_rate"] = total["read"] / total["input"] if total["read"] is not None else None
    return total
