"""One prompt's KV as one file, or as a folder with a file for each device that shares its heads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvsdk.errors import InvalidFile, InvalidRequest
from kvsdk.kv.files.manifest import Manifest
from kvsdk.kv.files.saving import load_manifest
from kvsdk.kv.models.spec import KVSpec

_SAME = ("key", "parent", "first_token", "num_tokens", "fingerprint", "spec", "layout")
"""What all ranks' manifests have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """Files whose headers were read, in the order of rank.

    Attributes:
        paths: The files.
        manifests: Theirs.
        num_kv_heads: KV heads of all of them together; those that several ranks have count once.
    """

    paths: tuple[Path, ...]
    manifests: tuple[Manifest, ...]
    num_kv_heads: int

    @property
    def first(self) -> Manifest:
        """The first one's manifest; the others differ in rank and payload only."""
        return self.manifests[0]

    @property
    def spec(self) -> KVSpec:
        """Of each file."""
        return self.first.spec

    @property
    def is_part(self) -> bool:
        """Whether it is one file of several that belong together."""
        own = self.first.fingerprint
        return len(self.paths) < (own.tensor_parallel or 1) * (own.pipeline_parallel or 1)

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(path.stat().st_size for path in self.paths)


def rank_file(folder: Path, rank: int) -> Path:
    """Where a rank's file is."""
    return folder / f"rank-{rank}.safetensors"


def read_ranks(source: str | os.PathLike[str]) -> RankFiles:
    """The headers of a file, or of the files `rank-0.safetensors`, `rank-1.safetensors`, ... of a folder.

    Raises:
        InvalidRequest: The folder has no such files, or they do not belong together.
        InvalidFile: One is no file of kvsdk, or its header is not what was written.
        ConfigurationError: One cannot be read.
    """
    source = Path(source)
    if not os.path.isdir(source):  # False for whatever cannot be a path, too
        manifest = _manifest(source)
        return RankFiles(paths=(source,), manifests=(manifest,), num_kv_heads=manifest.spec.num_kv_heads)
    paths = tuple(rank_file(source, rank) for rank in range(_count(source)))
    manifests = tuple(map(_manifest, paths))
    _check(source, paths, manifests)
    return RankFiles(paths=paths, manifests=manifests, num_kv_heads=_heads(manifests))


def _manifest(path: Path) -> Manifest:
    try:
        return load_manifest(path)
    except InvalidFile as error:
        if error.kind != "foreign":
            raise
        what = f"{error.detail}; kvsdk.kv.save writes one, and so does a store"
        raise InvalidFile(what, kind=error.kind) from error


def _count(folder: Path) -> int:
    found = {path.name for path in folder.glob("rank-*.safetensors")}
    if not found:
        raise InvalidRequest(
            f"{folder} has no rank-0.safetensors; name a file, or a folder with one file for each rank",
            field="source",
        )
    count = 0
    while rank_file(folder, count).name in found:
        count += 1
    if count < len(found):
        raise InvalidRequest(f"{folder} lacks rank-{count}.safetensors", field="source")
    return count


def _check(folder: Path, paths: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """The ranks are those of one prompt, and all of them."""
    for rank, (path, manifest) in enumerate(zip(paths, manifests, strict=True)):
        if manifest.rank != rank:
            raise InvalidFile(f"{path} says that it is rank {manifest.rank}", kind="corrupt")
        for name in _SAME:
            if getattr(manifest, name) != getattr(manifests[0], name):
                raise InvalidRequest(f"{path} does not belong to {paths[0]}: its {name} differs", field=name)
    own = manifests[0].fingerprint
    if (own.pipeline_parallel or 1) > 1:
        raise InvalidRequest(
            f"{folder}: the layers are divided among {own.pipeline_parallel} stages; convert file by file",
            field="source",
        )
    wanted = own.tensor_parallel or len(paths)
    if wanted != len(paths):
        raise InvalidRequest(
            f"{folder} has {len(paths)} of the {wanted} ranks that its files speak of", field="source"
        )


def _heads(manifests: Sequence[Manifest]) -> int:
    """KV heads of the whole model: of more ranks than heads, several in a row have the same one."""
    ranks, spec = len(manifests), manifests[0].spec
    if spec.kind == "mla":
        return 1
    if spec.num_kv_heads > 1:
        return spec.num_kv_heads * ranks
    sums = [manifest.checksums for manifest in manifests]
    for heads in range(1, ranks + 1):
        copies, rest = divmod(ranks, heads)
        if not rest and all(sums[rank] == sums[rank - rank % copies] for rank in range(ranks)):
            return heads
    return ranks


# ---------------------------------------------------------------------- where they go


def check_target(source: Path, target: Path, *, force: bool) -> None:
    """Whether something may be written there.

    Args:
        source: What is to be converted.
        target: Where to.
        force: Whether what is there may be replaced: a file, or a folder with nothing but files of ranks.

    Raises:
        InvalidRequest: It must not.
    """
    if not os.path.isdir(target.parent):
        raise InvalidRequest(f"the folder of {target} does not exist", field="target")
    old, new = source.resolve(), target.resolve()
    if old == new or (os.path.exists(target) and target.samefile(source)):
        raise InvalidRequest(f"{target} is what is to be converted; name another place", field="target")
    if old in new.parents or new in old.parents:
        raise InvalidRequest(
            f"one of {source} and {target} lies in the other; name another place", field="target"
        )
    if not os.path.lexists(target):
        return
    if target.is_dir() and not _is_of_ranks(target):
        raise InvalidRequest(
            f"{target} is a folder with other things in it, which is never replaced; name another place",
            field="target",
        )
    if not force:
        raise InvalidRequest(f"{target} is there already; force (--force) replaces it", field="force")


def _is_of_ranks(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return names == {rank_file(folder, rank).name for rank in range(len(names))}
