"""A file of KV as another one: of another layout, block size, dtype, or number of devices.

The new file has its name only once it is whole, and with `verify` only once it is proved to hold the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsdk._text import did_you_mean
from kvsdk.errors import InvalidFile, InvalidRequest
from kvsdk.kv.files.file import compress, plan_file
from kvsdk.kv.files.manifest import CODECS, Manifest
from kvsdk.kv.files.payload import layout_name
from kvsdk.kv.files.ranks import RankFiles, rank_file, read_ranks
from kvsdk.kv.files.replacing import check_target, replacing, write
from kvsdk.kv.files.saving import load
from kvsdk.kv.files.verify import Proof, reshard_scales, verify_files
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.convert import QUANTISED, convert
from kvsdk.kv.moving.reshard import reshard

if TYPE_CHECKING:
    import torch

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8_e4m3": "float8_e4m3fn"}
"""What KV can be stored in, and as PyTorch calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What was converted into what.

    Attributes:
        source: The first manifest that was read.
        target: The first one that was written.
        num_kv_heads: KV heads of all ranks together.
        source_ranks: How many files were read.
        target_ranks: How many were written.
        source_bytes: Of all files that were read.
        target_bytes: Of all that were written.
        seconds: For reading, converting and writing; the proof's time does not count.
        proof: That it is the same, if one was asked for.
    """

    source: Manifest
    target: Manifest
    num_kv_heads: int
    source_ranks: int
    target_ranks: int
    source_bytes: int
    target_bytes: int
    seconds: float
    proof: Proof | None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes that were read in a second; None where that took no time at all."""
        return self.source_bytes / self.seconds if self.seconds > 0 else None


class _Wanted(NamedTuple):
    """What is to become of the files."""

    fingerprint: Fingerprint
    spec: KVSpec
    layout: str
    codec: str | None
    ranks: tuple[int, ...]


class _Shards(NamedTuple):
    """KV in memory, a shard for each device."""

    kv: list[Any]
    scales: list[torch.Tensor | None]


def convert_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: Layout | str,
    tp: int | None = None,
    dtype: str | None = None,
    block_size: int | None = None,
    codec: str | None = None,
    verify: bool = False,
    force: bool = False,
    accept_loss: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Converted:
    """Write KV from files into files of another layout.

    The manifests say what is in the new files; keys and tokens are the old ones'. KV of another dtype is what
    a manifest calls lossy: the fingerprint's `kv_dtype` stays that of the model.

    Args:
        source: A file, or a folder with `rank-0.safetensors`, `rank-1.safetensors`, ...
        target: A file, or the folder of as many files as there are to be devices.
        to: The layout.
        tp: For how many devices the heads are divided; as they are by default.
        dtype: `fp16`, `bf16`, `fp32` or `fp8_e4m3`; as it is by default.
        block_size: Tokens of a block; as it is by default.
        codec: `"zstd"` or `"none"`; as it is by default.
        verify: Whether to read the new files and prove that they hold the same before they get their name.
        force: Whether to replace what is there.
        accept_loss: Whether KV that was stored in another dtype may become the model's own again: nothing in
            the file says then that it is only nearly what the model made.
        clock: Seconds, for `Converted.seconds`.

    Raises:
        UnknownLayout: A name that the registry does not have.
        InvalidRequest: An argument does not fit, or not the KV in the files.
        InvalidFile: A file is not what was written, or the proof failed; then nothing was written.
        ConfigurationError: A file cannot be read or written, or a codec's library is not installed.
        Unsupported: The model has layers whose state is no KV per token.
    """
    target = Path(target)
    files = read_ranks(source)
    check_target(Path(source), target, force=force)
    wanted = _wanted(files, to, tp, dtype, block_size, codec, accept_loss=accept_loss)
    import torch  # noqa: F401  loading it is no part of the conversion

    started = clock()
    old = _load(files)
    if wanted.spec.dtype != files.spec.dtype:
        _check_scales(files.first, old)
    with replacing(target) as place:
        _write_all(place, _reshard(old, files, len(wanted.ranks)), files, wanted)
        seconds = clock() - started
        written = read_ranks(place)
        proof = verify_files(files, old.kv, old.scales, written) if verify else None
        if proof is not None and proof.fault is not None:
            raise InvalidFile(f"{target} was not written: {proof.fault}", kind="corrupt")
        return Converted(
            source=files.first,
            target=written.first,
            num_kv_heads=files.num_kv_heads,
            source_ranks=len(files.paths),
            target_ranks=len(written.paths),
            source_bytes=files.num_bytes,
            target_bytes=written.num_bytes,
            seconds=seconds,
            proof=proof,
        )


# ---------------------------------------------------------------------- what is wanted


def _wanted(
    files: RankFiles,
    to: Layout | str,
    tp: int | None,
    dtype: str | None,
    block_size: int | None,
    codec: str | None,
    *,
    accept_loss: bool,
) -> _Wanted:
    own = files.first
    layout = layout_name(to)
    if Layout.of(layout).is_mla != (own.spec.kind == "mla"):
        theirs, ours = ("a latent (MLA)", "keys and values")[:: -1 if own.spec.kind == "mla" else 1]
        raise InvalidRequest(f"{layout!r} is a layout of {theirs}; this KV is {ours}", field="to")
    ranks, heads = _ranks(files, tp)
    spec = replace(
        own.spec,
        num_kv_heads=heads,
        dtype=_dtype(own, dtype, accept_loss=accept_loss),
        block_size=own.spec.block_size if block_size is None else block_size,
    )
    fingerprint = replace(own.fingerprint, layout_era=layout, block_size=spec.block_size)
    if tp is not None or len(files.paths) > 1:
        fingerprint = replace(fingerprint, tensor_parallel=len(ranks))
    if codec not in (None, "none", *CODECS):
        raise InvalidRequest(f"codec is none or {', '.join(CODECS)}, not {codec!r}", field="codec")
    packed = own.codec if codec is None else codec if codec in CODECS else None
    return _Wanted(fingerprint=fingerprint, spec=spec, layout=layout, codec=packed, ranks=ranks)


def _ranks(files: RankFiles, tp: int | None) -> tuple[tuple[int, ...], int]:
    """The new files' ranks, and how many heads each has."""
    own, count = files.first, len(files.paths)
    if tp is not None and (type(tp) is not int or tp < 1):
        raise InvalidRequest(f"tp is a number of at least 1, not {tp!r}", field="tp")
    if tp is None or (tp == count and not files.is_part):
        return tuple(manifest.rank for manifest in files.manifests), own.spec.num_kv_heads
    if files.is_part:
        raise InvalidRequest(
            f"{files.paths[0]} is rank {own.rank} of several; to divide the heads anew, name the folder that "
            "has the files of all ranks",
            field="tp",
        )
    if own.spec.kind == "mla":
        raise InvalidRequest(
            "MLA's latent is the same on every device; there are no heads to divide", field="tp"
        )
    heads = files.num_kv_heads
    if heads % tp and tp % heads:
        raise InvalidRequest(f"{heads} KV heads cannot be divided among {tp} devices", field="tp")
    return tuple(range(tp)), max(1, heads // tp)


def _dtype(own: Manifest, dtype: str | None, *, accept_loss: bool) -> str:
    if dtype is None:
        return own.spec.dtype
    wanted = DTYPES.get(dtype, dtype)
    if wanted not in DTYPES.values():
        raise InvalidRequest(f"there is no dtype {dtype!r}.{did_you_mean(dtype, DTYPES)}", field="dtype")
    if wanted == own.fingerprint.kv_dtype and own.is_lossy and not accept_loss:
        raise InvalidRequest(
            f"this KV was stored as {own.spec.dtype}; as {wanted}, the model's own dtype, nothing would say "
            "any more that it is only nearly what the model made. Ask for fp32, or accept the loss "
            "(--accept-loss)",
            field="accept_loss",
        )
    return wanted


def _check_scales(own: Manifest, shards: _Shards) -> None:
    """Bytes of an engine's quantised KV stand for no numbers while its scales are not in the file."""
    if own.spec.dtype not in QUANTISED or own.is_lossy:
        return
    if all(scales is not None and bool((scales == 1).all()) for scales in shards.scales):
        raise InvalidRequest(
            f"the engine's own scales of this {own.spec.dtype} KV are not in the file, so that its numbers "
            "are not known; leave the dtype as it is",
            field="dtype",
        )


# ---------------------------------------------------------------------- doing it


def _load(files: RankFiles) -> _Shards:
    opened = [load(path) for path in files.paths]
    for manifest, again in zip(files.manifests, opened, strict=True):
        if again.manifest != manifest:
            raise InvalidFile("a file changed while it was read", kind="corrupt")
    return _Shards([each.kv for each in opened], [each.scales for each in opened])


def _reshard(shards: _Shards, files: RankFiles, to: int) -> _Shards:
    """The shards of as many devices, in the layout that they have."""
    if to == len(shards.kv):
        return shards
    whole = replace(files.spec, num_kv_heads=files.num_kv_heads)
    kv = reshard(shards.kv, whole, files.first.layout, to=to)
    return _Shards(kv, reshard_scales(shards.scales, whole, to=to))


def _write_all(place: Path, shards: _Shards, files: RankFiles, wanted: _Wanted) -> None:
    """A file, or a folder of them."""
    is_folder = len(wanted.ranks) > 1
    if is_folder:
        place.mkdir()
    spec = replace(files.spec, num_kv_heads=wanted.spec.num_kv_heads)
    for rank, kv, scales in zip(wanted.ranks, shards.kv, shards.scales, strict=True):
        view = _made(kv, scales, spec, rank, files.first, wanted)
        write(rank_file(place, rank) if is_folder else place, view)


def _made(
    kv: Any, scales: torch.Tensor | None, spec: KVSpec, rank: int, own: Manifest, wanted: _Wanted
) -> memoryview:
    """One rank's file, in memory."""
    plan = plan_file(
        fingerprint=wanted.fingerprint,
        spec=wanted.spec,
        layout=wanted.layout,
        num_tokens=own.num_tokens,
        rank=rank,
    )
    view = memoryview(bytearray(plan.total_bytes))
    out, out_scales = plan.tensors(view)
    made = convert(
        kv,
        own.layout,
        wanted.layout,
        spec,
        dst_block_size=wanted.spec.block_size,
        num_tokens=own.num_tokens,
        dtype=wanted.spec.dtype,
        scales=scales,
        out=out,
    )
    if out_scales is not None:
        out_scales.copy_(made[1])
    plan.seal(view, key=own.key, parent=own.parent, first_token=own.first_token)
    return view if wanted.codec is None else compress(view)
