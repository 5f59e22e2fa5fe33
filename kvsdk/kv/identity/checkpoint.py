"""Digests of a checkpoint in Hugging Face's form: its config, weights, tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvsdk._ids import new_id
from kvsdk._paths import cache_dir
from kvsdk.errors import ConfigurationError, InvalidRequest

_NOISE = (
    "_commit_hash",
    "_model_name_or_path",
    "_name_or_path",
    "is_local",
    "local_files_only",
    "name_or_path",
    "transformers_version",
    "use_cache",
)
"""Fields of config.json and tokenizer_config.json that say where and by what they were saved."""

_TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "*.tiktoken",
)
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja")
_RECENT_NS = 2_000_000_000
"""A file written this shortly ago may change once more within the same tick of its file system's clock."""


def read_checkpoint(folder: Path, tokenizer: Path, overrides: Mapping[str, object]) -> dict[str, Any]:
    """The fields that a checkpoint's files decide."""
    try:
        config = _read_object(folder / "config.json")
        return {
            "config_digest": _config_digest(config, overrides),
            "sliding_window": _window(config),
            "tokenizer_digest": _tokenizer(tokenizer),
            "chat_template_digest": _chat_template(tokenizer),
            "weights_digest": _weights(folder),
        }
    except OSError as error:
        raise ConfigurationError(f"no checkpoint can be read from {folder}: {error}") from error


def _weights(folder: Path) -> str:
    """Over names, sizes and contents of the safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    shards = _read_object(index).get("weight_map") if index.exists() else {}
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ConfigurationError(f"{index} has no weight_map of file names")
    missing = sorted(set(shards.values()) - {file.name for file in files})
    if missing or not files:
        what = f"not the file {missing[0]}" if missing else "no file *.safetensors"
        raise ConfigurationError(
            f"{folder} has {what}, so there is no whole checkpoint to take the digest of"
        )
    with ThreadPoolExecutor(max_workers=min(4, len(files))) as threads:
        return hex_digest(canonical(list(threads.map(_digest_file, files))))


def _config_digest(config: Mapping[str, Any], overrides: Mapping[str, object]) -> str:
    try:
        return hex_digest(canonical([_without_noise(config), dict(overrides)]))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"config_overrides is what JSON can write: {error}", field="config_overrides"
        ) from error


def _tokenizer(folder: Path) -> str | None:
    """Over the tokenizer's files, without its chat template; None where there are none."""
    parts = _digests(folder, _TOKENIZER_FILES)
    if not parts:
        return None
    config = _tokenizer_config(folder)
    config.pop("chat_template", None)
    return hex_digest(canonical([parts, _without_noise(config)]))


def _chat_template(folder: Path) -> str | None:
    parts = _digests(folder, _TEMPLATE_FILES)
    template = _tokenizer_config(folder).get("chat_template")
    return hex_digest(canonical([parts, template])) if parts or template else None


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return _read_object(path) if path.exists() else {}


def _digests(folder: Path, patterns: Iterable[str]) -> list[tuple[str, str]]:
    files = sorted(file for pattern in patterns for file in folder.glob(pattern))
    return [(file.relative_to(folder).as_posix(), hex_digest(file.read_bytes())) for file in files]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} is not a JSON object")
    return found


def _without_noise(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_noise(inner) for name, inner in value.items() if name not in _NOISE}
    return value


def _window(config: Mapping[str, Any]) -> int:
    """The sliding window of a config, or of its language part; 0 for none."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping) or text.get("use_sliding_window") is False:
        return 0
    window = text.get("sliding_window")
    return window if type(window) is int and window > 0 else 0


def _digest_file(path: Path) -> tuple[str, int, str]:
    """Name, size and sha256 of a file: kept from the last time, where the file is the same."""
    started_ns = time.time_ns()
    real = path.resolve()
    with real.open("rb") as file:
        before = _stamp(real, file.fileno())
        kept = cache_dir() / "fingerprints" / f"{hex_digest(os.fsencode(real))}.json"
        digest = _read_kept(kept, before)
        if digest is None:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if _stamp(real, file.fileno()) != before:
                raise ConfigurationError(f"{path} changed while it was read; try again when it is whole")
            if started_ns - before["mtime_ns"] > _RECENT_NS:
                _keep(kept, {**before, "sha256": digest})
    return path.name, before["size"], digest


def _stamp(path: Path, descriptor: int) -> dict[str, Any]:
    stat = os.fstat(descriptor)
    times = {"mtime_ns": stat.st_mtime_ns, "ctime_ns": stat.st_ctime_ns}
    return {"path": str(path), "size": stat.st_size, **times}


def _read_kept(kept: Path, stamp: Mapping[str, Any]) -> str | None:
    try:
        found = json.loads(kept.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    digest = found.pop("sha256", None) if isinstance(found, dict) else None
    is_same = isinstance(digest, str) and len(digest) == 64 and found == stamp
    return digest if is_same else None


def _keep(kept: Path, entry: Mapping[str, Any]) -> None:
    """Whole or not at all; a cache directory that cannot be written costs time only."""
    temporary = kept.with_name(new_id("tmp"))
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(canonical(entry))
        temporary.replace(kept)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def canonical(value: object) -> bytes:
    """As JSON in one form only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def hex_digest(data: str | bytes) -> str:
    """sha256."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()
