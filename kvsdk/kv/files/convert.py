"""A file of KV as another one: of another layout, block size, dtype, or number of devices.

The new file has its name only once it is whole, and with `verify` only once it is proved to hold the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsdk.errors import ConfigurationError, InvalidFile, InvalidRequest
from kvsdk.kv.files.file import compress, plan_file
from kvsdk.kv.files.manifest import Manifest
from kvsdk.kv.files.ranks import RankFiles, check_target, rank_file, read_ranks
from kvsdk.kv.files.replacing import replacing, write
from kvsdk.kv.files.shards import Shards, load_shards, reshard_shards
from kvsdk.kv.files.verify import Proof, verify_files
from kvsdk.kv.files.wanted import Wanted, find_wanted
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.convert import QUANTISED, convert

if TYPE_CHECKING:
    import torch


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
    wanted = find_wanted(files, to, tp, dtype, block_size, codec, accept_loss=accept_loss)
    import torch  # noqa: F401  loading it is no part of the conversion

    try:
        return _converted(files, target, wanted, verify=verify, clock=clock)
    except MemoryError as error:
        raise ConfigurationError(
            f"{target} was not written: there is not enough memory for both the KV that was read and the new "
            f"one in blocks of {wanted.spec.block_size}"
        ) from error


def _converted(
    files: RankFiles, target: Path, wanted: Wanted, *, verify: bool, clock: Callable[[], float]
) -> Converted:
    started = clock()
    old = load_shards(files)
    if wanted.spec.dtype != files.spec.dtype:
        _check_scales(files.first, old)
    with replacing(target) as place:
        _write_all(place, reshard_shards(old, files, to=len(wanted.ranks)), files, wanted)
        seconds = clock() - started
        written = read_ranks(place)
        proof = verify_files(files, old, written) if verify else None
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


def _check_scales(own: Manifest, shards: Shards) -> None:
    """Bytes of an engine's quantised KV stand for no numbers while its scales are not in the file."""
    if own.spec.dtype not in QUANTISED or own.is_lossy:
        return
    if all(scales is not None and bool((scales == 1).all()) for scales in shards.scales):
        raise InvalidRequest(
            f"the engine's own scales of this {own.spec.dtype} KV are not in the file, so that its numbers "
            "are not known; leave the dtype as it is",
            field="dtype",
        )


def _write_all(place: Path, shards: Shards, files: RankFiles, wanted: Wanted) -> None:
    """A file, or a folder of them."""
    is_folder = len(wanted.ranks) > 1
    if is_folder:
        place.mkdir()
    spec = replace(files.spec, num_kv_heads=wanted.spec.num_kv_heads)
    for rank, kv, scales in zip(wanted.ranks, shards.kv, shards.scales, strict=True):
        view = _made(kv, scales, spec, rank, files.first, wanted)
        write(rank_file(place, rank) if is_folder else place, view)


def _made(
    kv: Any, scales: torch.Tensor | None, spec: KVSpec, rank: int, own: Manifest, wanted: Wanted
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
