"""What is to become of files of KV: arguments held against what is in the files, before anything is read."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvsdk._text import did_you_mean
from kvsdk.errors import InvalidRequest
from kvsdk.kv.files.manifest import CODECS, Manifest
from kvsdk.kv.files.payload import layout_name
from kvsdk.kv.files.ranks import RankFiles
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.spec import SHORT_DTYPES, KVSpec

_MOST_DEVICES = 4096
"""Above, somebody has mistyped: each more than there are heads is a copy."""


class Wanted(NamedTuple):
    """What the new files are to be.

    Attributes:
        fingerprint: Of each.
        spec: Of each one's payload.
        layout: As a manifest says it.
        codec: Of each.
        ranks: A file for each of these.
    """

    fingerprint: Fingerprint
    spec: KVSpec
    layout: str
    codec: str | None
    ranks: tuple[int, ...]


def find_wanted(
    files: RankFiles,
    to: Layout | str,
    tp: int | None,
    dtype: str | None,
    block_size: int | None,
    codec: str | None,
    *,
    accept_loss: bool,
) -> Wanted:
    """What `convert_file` is to write, from its arguments.

    Raises:
        UnknownLayout: A name that the registry does not have.
        InvalidRequest: An argument does not fit, or not the KV in the files.
    """
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
    return Wanted(fingerprint=fingerprint, spec=spec, layout=layout, codec=packed, ranks=ranks)


def _ranks(files: RankFiles, tp: int | None) -> tuple[tuple[int, ...], int]:
    """The new files' ranks, and how many heads each has."""
    own, count = files.first, len(files.paths)
    if tp is not None and (type(tp) is not int or not 1 <= tp <= _MOST_DEVICES):
        raise InvalidRequest(f"tp is a number from 1 to {_MOST_DEVICES}, not {tp!r}", field="tp")
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
        raise InvalidRequest(
            f"{heads} KV heads cannot be divided among {tp} devices; tp is a divisor of {heads}, "
            "or a multiple of it",
            field="tp",
        )
    return tuple(range(tp)), max(1, heads // tp)


def _dtype(own: Manifest, dtype: str | None, *, accept_loss: bool) -> str:
    if dtype is None:
        return own.spec.dtype
    wanted = SHORT_DTYPES.get(dtype, dtype)
    if wanted not in SHORT_DTYPES.values():
        raise InvalidRequest(
            f"there is no dtype {dtype!r}.{did_you_mean(dtype, SHORT_DTYPES)}", field="dtype"
        )
    if wanted == own.fingerprint.kv_dtype and own.is_lossy and not accept_loss:
        raise InvalidRequest(
            f"this KV was stored as {own.spec.dtype}; as {wanted}, the model's own dtype, nothing would say "
            "any more that it is only nearly what the model made. Ask for fp32, or accept the loss "
            "(--accept-loss)",
            field="accept_loss",
        )
    return wanted
