"""KV to and from files on a disk, one at a time."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from kvsdk.errors import ConfigurationError, InvalidFile, InvalidRequest
from kvsdk.kv.files.file import Opened, compress, file_bytes, open_file, plan_file, read_manifest
from kvsdk.kv.files.header import header_bytes
from kvsdk.kv.files.manifest import CODECS, NO_KEY, Manifest
from kvsdk.kv.files.replacing import replacing, write
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.spec import KVSpec
from kvsdk.kv.moving.convert import convert

if TYPE_CHECKING:
    import torch


def save(
    path: str | os.PathLike[str],
    kv: Any,
    *,
    layout: Layout | str,
    spec: KVSpec,
    fingerprint: Fingerprint,
    num_tokens: int,
    key: bytes,
    parent: bytes = NO_KEY,
    first_token: int = 0,
    rank: int = 0,
    blocks: Sequence[int] | None = None,
    scales: torch.Tensor | None = None,
    codec: Literal["zstd"] | None = None,
) -> Manifest:
    """Write KV to a file as it lies, whole or not at all; a file of that name is replaced.

    Args:
        path: The file.
        kv: The KV, in the Python sequences and tensors that its layout says.
        layout: Of the KV and of the file.
        spec: The model; its dtype and block size are the KV's.
        fingerprint: What made it.
        num_tokens: How many tokens to write.
        key: The chain key of the prompt up to their end, 32 bytes; of all of a prompt it is
            `chain_hashes(tokens, len(tokens))[0]`.
        parent: The one before.
        first_token: Where in the prompt they begin.
        rank: Of tensor and pipeline parallelism.
        blocks: The KV's blocks in logical order; 0, 1, ... by default.
        scales: Of quantised KV.
        codec: `"zstd"` to compress it.

    Raises:
        InvalidRequest: A value does not fit.
        UnknownLayout: A name that the registry does not have.
        ConfigurationError: The file cannot be written, or the library for the codec is not installed.
    """
    if codec not in (None, *CODECS):
        raise InvalidRequest(f"codec is None or one of {', '.join(CODECS)}, not {codec!r}", field="codec")
    plan = plan_file(fingerprint=fingerprint, spec=spec, layout=layout, num_tokens=num_tokens, rank=rank)
    view = memoryview(bytearray(plan.total_bytes))
    out, out_scales = plan.tensors(view)
    convert(kv, layout, layout, spec, num_tokens=num_tokens, src_blocks=blocks, scales=scales, out=out)
    if out_scales is not None and scales is not None:  # convert has checked that both are, or neither
        out_scales.copy_(scales)
    manifest = plan.seal(view, key=key, parent=parent, first_token=first_token)
    if codec is not None:
        view = compress(view)
        manifest = read_manifest(view)
    _write(Path(path), view)
    return manifest


def load(path: str | os.PathLike[str]) -> Opened:
    """What a file holds, all of it checked. The tensors are the caller's own.

    Raises:
        InvalidFile: It is no file of kvsdk, or not what was written.
        ConfigurationError: It cannot be read, or the library for its codec is not installed.
    """
    with _reading(path) as file:
        return open_file(_read(file))


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of a file, read from its header alone; raises as `load`."""
    with _reading(path) as file:
        return read_manifest(_read_header(file))


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """The file, opened; what is wrong with it is said with its name."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            yield file
    except InvalidFile as error:
        raise InvalidFile(f"{name}: {error.detail}", kind=error.kind) from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise ConfigurationError(f"{name} cannot be read: there is not enough memory for it") from error


def _read(file: BinaryIO) -> bytearray:
    """A file's bytes, once its header shows that it is ours. One byte too many is enough to see that."""
    header = _read_header(file)
    size = min(os.fstat(file.fileno()).st_size, file_bytes(read_manifest(header)) + 1)
    data = bytearray(max(size, len(header)))
    data[: len(header)] = header
    end = len(header) + file.readinto(memoryview(data)[len(header) :])  # type: ignore[attr-defined]
    return data[:end] if end < len(data) else data


def _read_header(file: BinaryIO) -> bytes:
    start = file.read(8)
    return start + file.read(header_bytes(memoryview(start)) - 8)


def _write(path: Path, view: memoryview) -> None:
    """Whole, or not at all."""
    if path.is_dir():
        raise ConfigurationError(f"{path} cannot be written: it is a folder")
    with replacing(path) as place:
        write(place, view)
