"""KV of several devices in memory, as it was read from their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsdk.errors import InvalidFile
from kvsdk.kv.files.ranks import RankFiles
from kvsdk.kv.files.saving import load
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.reshard import reshard

if TYPE_CHECKING:
    import torch


class Shards(NamedTuple):
    """KV, a shard for each device.

    Attributes:
        kv: Each one's, in the Python sequences and tensors that its layout says.
        scales: Each one's, `(layers, parts, heads)`; None where the dtype has none.
    """

    kv: list[Any]
    scales: list[torch.Tensor | None]


def load_shards(files: RankFiles) -> Shards:
    """All that is in files whose headers were read before.

    Raises:
        InvalidFile: One is not what was written, or was replaced meanwhile.
        ConfigurationError: One cannot be read.
    """
    opened = [load(path) for path in files.paths]
    for manifest, again in zip(files.manifests, opened, strict=True):
        if again.manifest != manifest:
            raise InvalidFile("a file changed while it was read", kind="corrupt")
    return Shards([each.kv for each in opened], [each.scales for each in opened])


def reshard_shards(shards: Shards, files: RankFiles, *, to: int) -> Shards:
    """The same for as many devices, in the layout that it has.

    Args:
        shards: The KV.
        files: Where it is from.
        to: How many devices.
    """
    if to == len(shards.kv):
        return shards
    whole = replace(files.spec, num_kv_heads=files.num_kv_heads)
    kv = reshard(shards.kv, whole, files.first.layout, to=to)
    return Shards(kv, _reshard_scales(shards.scales, whole, to))


def _reshard_scales(
    scales: Sequence[torch.Tensor | None], spec: KVSpec, to: int
) -> list[torch.Tensor | None]:
    """They are divided as the heads are: as KV of one token and one dim."""
    given = [each[:, :, None, :, None] for each in scales if each is not None]
    if not given:
        return [None] * to
    as_kv = replace(spec, head_dim=1, head_dim_v=None, dtype="float32")
    made = reshard(given, as_kv, "| layer kv token head dim", to=to)
    return [each[:, :, 0, :, 0] for each in made]
