"""`kvsdk convert`: a file of KV in another layout, block size, dtype, or for another number of devices."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kvsdk.cli.tables import Column, Format, count, render
from kvsdk.cli.units import many, rate, seconds, size

if TYPE_CHECKING:
    from kvsdk.kv.files.convert import Converted
    from kvsdk.kv.files.manifest import Manifest


class Dtype(StrEnum):
    """What KV can be stored in."""

    fp16 = "fp16"
    bf16 = "bf16"
    fp32 = "fp32"
    fp8_e4m3 = "fp8_e4m3"


class Codec(StrEnum):
    """What a file can be compressed with."""

    none = "none"
    zstd = "zstd"


_COLUMNS = tuple(
    Column(key, key.replace("_", " "), write, is_number)
    for key, write, is_number in (
        ("tokens", count, True),
        ("layers", count, True),
        ("kv_heads", count, True),
        ("from_layout", str, False),
        ("to_layout", str, False),
        ("from_block_size", count, True),
        ("to_block_size", count, True),
        ("from_dtype", str, False),
        ("to_dtype", str, False),
        ("from_ranks", count, True),
        ("to_ranks", count, True),
        ("codec", str, False),
        ("from_bytes", count, True),
        ("to_bytes", count, True),
        ("seconds", "{:.3f}".format, True),
        ("gb_per_s", "{:.2f}".format, True),
        ("is_lossy", str, False),
        ("equal_blocks", count, True),
        ("keys_error", "{:.3g}".format, True),
        ("values_error", "{:.3g}".format, True),
        ("latent_error", "{:.3g}".format, True),
    )
)


_TO = (
    "hf/dynamic, lmcache/2ltd, sglang/layer-first, sglang/page-first, trtllm, vllm/0.23-0.25, vllm/0.26+, "
    "vllm/0.26+cpu, vllm/0.26+nhd, vllm/<=0.22, vllm/<=0.22-hnd, vllm/mla, vllm/paged-v0; or axes, such as "
    "'layer | block kv head token dim'."
)
_TP = "Divide the KV heads among so many devices; OUT is a folder then, unless it is 1."
_LOSS = (
    "Let KV that was stored in another dtype become the model's own again, though OUT does not say then that "
    "it is only nearly what the model made."
)


def convert_command(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="A file, or a folder with rank-0.safetensors and so on."),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The new file; a folder where there are several ranks.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="LAYOUT", help=_TO)],
    tp: Annotated[int | None, typer.Option(metavar="N", help=_TP)] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Store it in another dtype; as IN is by default.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Tokens of a block; as IN is by default.")
    ] = None,
    codec: Annotated[Codec | None, typer.Option(help="Compress it, or not; as IN is by default.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read OUT again and prove that it holds the same.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help=_LOSS)] = False,
    form: Annotated[Format, typer.Option("--format", help="How to print what was done.")] = Format.table,
) -> None:
    """Convert KV in a file: another layout, block size, dtype, or number of devices.

    OUT has its name only once it is whole, and with --verify only once it is proved to hold the same.

    \b
    kvsdk convert kv.safetensors ranks --to vllm/0.26+ --tp 2 --verify
    kvsdk convert ranks whole.safetensors --to hf/dynamic --tp 1
    kvsdk convert kv.safetensors kv8.safetensors --to hf/dynamic --dtype fp8_e4m3
    """
    from kvsdk.kv.files.convert import convert_file

    with _stoppable():
        done = convert_file(
            source,
            target,
            to=to,
            tp=tp,
            dtype=None if dtype is None else dtype.value,
            block_size=block_size,
            codec=None if codec is None else codec.value,
            verify=verify,
            force=force,
            accept_loss=accept_loss,
        )
    if form is Format.table:
        typer.echo(_summary(done))
    else:
        typer.echo(render(_COLUMNS, [_row(done)], None, form))


@contextmanager
def _stoppable() -> Generator[None]:
    """Whoever ends the process, or closes its terminal, leaves nothing half-written either."""
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [each for each in known if signal.getsignal(each) is signal.SIG_DFL]  # not under nohup
    for each in ours:
        signal.signal(each, _stop)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _row(done: Converted) -> dict[str, Any]:
    ours, theirs, proof = done.source, done.target, done.proof
    errors = {} if proof is None else {each.part: each.error for each in proof.deviations}
    return {
        "tokens": theirs.num_tokens,
        "layers": theirs.spec.num_layers,
        "kv_heads": done.num_kv_heads,
        "from_layout": ours.layout,
        "to_layout": theirs.layout,
        "from_block_size": ours.spec.block_size,
        "to_block_size": theirs.spec.block_size,
        "from_dtype": ours.spec.dtype,
        "to_dtype": theirs.spec.dtype,
        "from_ranks": done.source_ranks,
        "to_ranks": done.target_ranks,
        "codec": theirs.codec,
        "from_bytes": done.source_bytes,
        "to_bytes": done.target_bytes,
        "seconds": round(done.seconds, 6),
        "gb_per_s": None if done.bytes_per_s is None else round(done.bytes_per_s / 1e9, 3),
        "is_lossy": theirs.is_lossy,
        "equal_blocks": None if proof is None else proof.num_blocks,
        **{f"{part}_error": errors.get(part) for part in ("keys", "values", "latent")},
    }


def _summary(done: Converted) -> str:
    """What became of what, how large and how fast, and the proof: a line for each."""
    tokens = many(done.target.num_tokens, "token")
    layers = many(done.target.spec.num_layers, "layer")
    speed = "" if done.bytes_per_s is None else f" ({rate(done.bytes_per_s)})"
    ours, theirs = _form(done.source, done.source_ranks), _form(done.target, done.target_ranks)
    lines = [
        f"{tokens}, {layers}: {ours} -> {theirs}",
        f"{size(done.source_bytes)} -> {size(done.target_bytes)} in {seconds(done.seconds)}{speed}",
    ]
    return "\n".join([*lines, *_proof(done)])


def _form(manifest: Manifest, ranks: int) -> str:
    from kvsdk.kv.layouts.layout import Layout

    words = [manifest.spec.dtype]
    if Layout.of(manifest.layout).is_paged:
        words.append(f"blocks of {manifest.spec.block_size}")
    if ranks > 1:
        words.append(f"{ranks} ranks")
    if manifest.codec is not None:
        words.append(manifest.codec)
    return f"{manifest.layout} ({', '.join(words)})"


def _proof(done: Converted) -> list[str]:
    proof = done.proof
    if proof is None:
        return []
    if proof.num_blocks is not None:
        return [f"verified: {many(proof.num_blocks, 'block')} equal byte for byte"]
    parts = ", ".join(f"{each.part} off by at most {each.error:.3g}" for each in proof.deviations)
    largest = max(each.magnitude for each in proof.deviations)
    return [f"verified: {parts}, of numbers up to {largest:.3g}"]
