"""Scrubbing: every entry of a tier is read and checked, before somebody wants it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeVar

from kvsdk.errors import InvalidFile, KvsdkError
from kvsdk.kv.files.file import check_file
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.store.entries.identity import Identity
from kvsdk.store.levels.guard import TierUnavailable
from kvsdk.store.tiers.buffers import Buffer, BufferPool
from kvsdk.store.tiers.disk import Disk
from kvsdk.store.tiers.disk_files import Files
from kvsdk.store.tiers.tier import Tier

FileKind = Literal["truncated", "corrupt", "foreign", "newer"]
ProblemKind = FileKind | Literal["unreadable"]
Progress = Callable[[int, int], object]
T = TypeVar("T")


class Call(Protocol):
    """A way to call a tier."""

    def __call__(self, job: Callable[[], T], /) -> T:
        """Do it in the tier."""


_PREFIXES = ("kv/", "fp/")
_NAME = re.compile(r"kv/([0-9a-f]{64})/([0-9]{1,3})-([0-9a-f]{64})")
_REMOVABLE = ("truncated", "corrupt", "foreign")
"""A newer kvsdk's are good to it, and what cannot be read now may be read later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One entry that is not what it should be.

    Attributes:
        name: The entry's; `kv/` or `fp/` where these entries could not be listed.
        kind: As of `InvalidFile`, or `unreadable`: the tier failed to give it.
        detail: What is wrong, in words.
        is_removed: Whether it was removed.
    """

    name: str
    kind: ProblemKind
    detail: str
    is_removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    """What a scrub found.

    Attributes:
        entries: Entries that were read.
        read_bytes: Bytes of these.
        problems: What is wrong, in the order of names.
    """

    entries: int
    read_bytes: int
    problems: tuple[Problem, ...]

    @property
    def removed(self) -> tuple[str, ...]:
        """The names of what was removed."""
        return tuple(problem.name for problem in self.problems if problem.is_removed)


def _directly(job: Callable[[], T], /) -> T:
    return job()


def scrub(
    tier: Tier,
    *,
    pool: BufferPool | None = None,
    remove: bool = False,
    progress: Progress | None = None,
    call: Call = _directly,
) -> ScrubReport:
    """Read every entry of a tier and check all of it. Entries that go meanwhile are left out.

    That is no use of them: the tier goes on as if nobody had asked.

    Args:
        tier: An open tier.
        pool: Where memory comes from; its own by default.
        remove: Whether to remove what is truncated, corrupt or foreign. What a newer kvsdk wrote stays.
        progress: Called with the number of entries that are done, and of all, before and after each.
        call: How to call the tier. `TierUnavailable` says that it hangs: then the rest is left unread.
    """
    pool = pool or BufferPool()
    problems: list[Problem] = []
    names = _names(tier, problems, call)
    entries = read_bytes = 0
    for done, name in enumerate(names):
        if progress is not None:
            progress(done, len(names))
        try:
            found = _check(tier, name, pool, call)
        except TierUnavailable as error:
            detail = f"{error}; the {len(names) - done - 1} after it were not read"
            problems.append(Problem(name=name, kind="unreadable", detail=detail))
            break
        if found is None:
            continue
        length, problem = found
        entries += length is not None
        read_bytes += length or 0
        if problem is not None:
            problems.append(_removed(tier, problem, call) if remove else problem)
    if progress is not None:
        progress(len(names), len(names))
    return ScrubReport(entries=entries, read_bytes=read_bytes, problems=tuple(problems))


def _names(tier: Tier, problems: list[Problem], call: Call) -> list[str]:
    """What the tier lists; of a disk tier also files that have expired or that its index does not know."""
    found: list[str] = []
    for prefix in _PREFIXES:
        try:
            names = call(partial(_listed, tier, prefix))
        except Exception as error:  # noqa: BLE001  whatever a tier raises: the report says it
            problems.append(Problem(name=prefix, kind="unreadable", detail=f"cannot be listed: {error}"))
        else:
            found += sorted(names)
    return found


def _listed(tier: Tier, prefix: str) -> set[str]:
    names = {*tier.list(prefix)}
    if isinstance(tier, Disk):
        names |= {name for name in Files(tier.path).names() if name.startswith(prefix)}
    return names


def _check(tier: Tier, name: str, pool: BufferPool, call: Call) -> tuple[int | None, Problem | None] | None:
    """An entry's size, if it can be read, and what is wrong; None where it is not there any more."""
    try:
        data = call(lambda: _read(tier, name, pool))
    except TierUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  as above
        return None, Problem(name=name, kind="unreadable", detail=str(error))
    if data is None:
        return None
    try:
        return len(data), _problem(name, data.view)
    finally:
        data.release()


def _read(tier: Tier, name: str, pool: BufferPool) -> Buffer | None:
    """The entry as it lies there: a disk tier removes a file of another size when it is asked for it."""
    if not isinstance(tier, Disk):
        return tier.get(name, pool)
    files = Files(tier.path)
    with files.reading(name) as found:
        return None if found is None else files.read(*found, pool)


def _problem(name: str, view: memoryview) -> Problem | None:
    try:
        if name.startswith("fp/"):
            _check_record(name, bytes(view))
        else:
            _check_chunk(name, view)
    except InvalidFile as error:
        return Problem(name=name, kind=error.kind, detail=error.detail)
    return None


def _check_chunk(name: str, view: memoryview) -> None:
    """A file of KV, whole, of the tokens that the name says."""
    manifest = check_file(view)
    words = _NAME.fullmatch(name)
    if words is None:
        raise InvalidFile("a store names no chunk so", kind="foreign")
    if (manifest.parent.hex(), str(manifest.num_tokens), manifest.key.hex()) != words.groups():
        raise InvalidFile("it holds other tokens than its name says", kind="corrupt")


def _check_record(name: str, text: bytes) -> None:
    """What an identity is, under the name of that identity."""
    try:
        found = Identity.from_json(text).record_name
    except KvsdkError as error:
        kind: FileKind = "newer" if _is_newer(text, error) else "corrupt"
        raise InvalidFile(str(error), kind=kind) from error
    if found != name:
        raise InvalidFile("it is the record of another identity", kind="corrupt")


def _is_newer(text: bytes, error: KvsdkError) -> bool:
    """Whether a record that cannot be read is whole, and has more in it than is known here."""
    try:
        version = json.loads(text)["fingerprint"]["version"]
    except (LookupError, TypeError, ValueError, RecursionError):
        return False
    field = getattr(error, "field", None)
    return type(version) is int and version >= 1 and field is not None and field not in Fingerprint.classes()


def _removed(tier: Tier, problem: Problem, call: Call) -> Problem:
    if problem.kind not in _REMOVABLE:
        return problem
    try:
        call(lambda: tier.remove(problem.name))
    except Exception as error:  # noqa: BLE001  as above
        return replace(problem, detail=f"{problem.detail}; it cannot be removed: {error}")
    return replace(problem, is_removed=True)
