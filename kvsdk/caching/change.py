"""The first piece in which two prompts differ, and how it moved, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvsdk.caching.prefix import Prefix, PrefixBlock
from kvsdk.caching.traits import Trait
from kvsdk.caching.volatile import Shape, named
from kvsdk.prompt import Section

_ORDER: tuple[Section, ...] = ("tools", "system", "messages")
_UNKNOWN = Trait("", (), None)


@dataclass(frozen=True, slots=True)
class Change:
    """Where a prompt moved: the section and place, and how, in words."""

    section: Section
    where: str
    how: str


@dataclass(frozen=True, slots=True)
class _Piece:
    block: PrefixBlock
    trait: Trait

    @property
    def kind(self) -> str:
        return self.block.kind


def first_change(
    now: Prefix, now_traits: Sequence[Trait], before: Prefix, before_traits: Sequence[Trait]
) -> Change | None:
    """Where a prompt stops being the continuation of an earlier one; None when it is one.

    Without traits the place is found all the same, and less of the how.
    """
    common = now.common_blocks(before)
    if common == len(before.blocks):
        return None
    new, old = _pieces(now, now_traits, common), _pieces(before, before_traits, common)
    first = min((*new[:1], *old[:1]), key=lambda piece: _ORDER.index(piece.block.section)).block
    new, old = _within(first.section, new), _within(first.section, old)
    how = _tools_change(new, old) if first.section == "tools" else _texts_change(first.section, new, old)
    return Change(first.section, first.where, how)


def _pieces(prefix: Prefix, traits: Sequence[Trait], start: int) -> list[_Piece]:
    known = traits[start:] or [_UNKNOWN] * (len(prefix.blocks) - start)
    return [_Piece(*pair) for pair in zip(prefix.blocks[start:], known, strict=True)]


def _within(section: Section, pieces: Iterable[_Piece]) -> list[_Piece]:
    return [piece for piece in pieces if piece.block.section == section]


# ---------------------------------------------------------------------- tools


def _tools_change(new: Sequence[_Piece], old: Sequence[_Piece]) -> str:
    if not all(piece.trait.name for piece in (*new, *old)):
        return "the tools changed"
    names = [piece.trait.name for piece in new]
    old_names = [piece.trait.name for piece in old]
    if names and old_names and names[0] == old_names[0]:
        return _tool_change(new[0].trait, old[0].trait)
    if names and old_names and names[0] in old_names and old_names[0] in names:
        return f"the tools are in another order: {names[0]!r} now comes before {old_names[0]!r}"
    added = [name for name in names if name not in old_names]
    removed = [name for name in old_names if name not in names]
    words = (_moved(removed, "removed"), _moved(added, "added"))
    return " and ".join(word for word in words if word)


def _moved(names: Sequence[str], verb: str) -> str:
    if not names:
        return ""
    return f"tool {names[0]!r} was {verb}" if len(names) == 1 else f"tools {_listed(names)} were {verb}"


def _tool_change(now: Trait, before: Trait) -> str:
    """How the definition of one tool changed."""
    differing = now.differing(before)
    tool = f"of tool {now.name!r}"
    if differing == ("schema",):
        return f"the key order in the schema {tool} changed; nothing else did"
    if "schema, sorted" in differing and "description" in differing:
        return f"the description and the schema {tool} changed"
    if "description" in differing:
        values = _values(now.shape, before.shape)
        return f"in the description {tool}, {values}" if values else f"the description {tool} changed"
    return f"the schema {tool} changed"


def _listed(names: Sequence[str], limit: int = 4) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


# ---------------------------------------------------------------------- system and messages


def _texts_change(section: Section, new: Sequence[_Piece], old: Sequence[_Piece]) -> str:
    inserted, removed = _gap(new, old)
    if inserted == 0:
        return _removed(section, new, old[:removed])
    if removed == 0:
        return _inserted(section, new[:inserted], old)
    special = _thinking_change(new[0], old[0])
    if special:
        return special
    if section == "messages" and inserted < removed:
        return (
            f"the history was rewritten and is shorter: {_count(inserted)} where "
            f"{'there was 1' if removed == 1 else f'there were {removed}'}"
        )
    return _piece_change(section, new[0], old[0])


def _gap(new: Sequence[_Piece], old: Sequence[_Piece]) -> tuple[int, int]:
    """How many pieces differ on either side before the two prompts agree again; all, where they never do."""
    places: dict[bytes, int] = {}
    for index, piece in enumerate(old):
        places.setdefault(piece.block.digest, index)
    for index, piece in enumerate(new):
        if piece.block.digest in places:
            return index, places[piece.block.digest]
    return len(new), len(old)


def _removed(section: Section, new: Sequence[_Piece], gone: Sequence[_Piece]) -> str:
    later = {piece.block.digest for piece in new}
    if any(piece.block.digest in later for piece in gone):
        return _reordered(section)
    kinds = {piece.kind for piece in gone}
    if kinds == {"thinking"}:
        return "the thinking of an earlier turn was dropped"
    if kinds == {"image"}:
        return "an image was removed"
    if section == "system":
        return "a system text was removed" if len(gone) == 1 else f"{len(gone)} system texts were removed"
    return f"the history was shortened: {_count(len(gone))} removed"


def _inserted(section: Section, more: Sequence[_Piece], old: Sequence[_Piece]) -> str:
    earlier = {piece.block.digest for piece in old}
    if any(piece.block.digest in earlier for piece in more):
        return _reordered(section)
    kinds = {piece.kind for piece in more}
    if kinds == {"thinking"}:
        return "thinking was added to an earlier turn"
    if kinds == {"image"}:
        return "an image was added before what was cached"
    if section == "system":
        return "a system text was added" if len(more) == 1 else f"{len(more)} system texts were added"
    return f"{_count(len(more))} inserted into the history"


def _reordered(section: Section) -> str:
    return (
        "the system texts are in another order" if section == "system" else "the history is in another order"
    )


def _thinking_change(now: _Piece, before: _Piece) -> str | None:
    if "thinking" not in (now.kind, before.kind):
        return None
    if now.kind == before.kind:
        return "the thinking of an earlier turn was changed"
    if before.kind == "thinking":
        return "the thinking of an earlier turn was dropped"
    return "thinking was added to an earlier turn"


def _piece_change(section: Section, now: _Piece, before: _Piece) -> str:
    """How one piece became another at the same place."""
    if now.block.place != before.block.place:
        return f"a turn of the {before.block.place} became one of the {now.block.place}"
    if now.kind != before.kind:
        if now.kind in ("image", "file"):
            return f"{'an' if now.kind == 'image' else 'a'} {now.kind} was added before what was cached"
        return f"a {_spoken(before.kind)} became a {_spoken(now.kind)}"
    if now.kind in ("image", "file"):
        return f"it is another {now.kind}"
    if now.kind == "tool_call":
        return _call_change(now.trait, before.trait)
    values = _values(now.trait.shape, before.trait.shape)
    if now.kind == "tool_result":
        if now.trait.differing(before.trait) == ("id",):
            return "the call id of a tool result changed; nothing else did"
        return f"in a tool result, {values}" if values else "an earlier tool result was edited"
    return values or ("its text changed" if section == "system" else "an earlier turn was edited")


def _call_change(now: Trait, before: Trait) -> str:
    differing = now.differing(before)
    if differing == ("arguments",):
        return f"the key order of the arguments in a call of {now.name!r} changed; nothing else did"
    if differing == ("id",):
        return f"the id of a call of {now.name!r} changed; nothing else did"
    return "an earlier tool call was edited"


def _values(now: Shape | None, before: Shape | None) -> str:
    """The kinds of value that changed where nothing else did; empty where more did."""
    changed = now.changed(before) if now and before else None
    if not changed:
        return ""
    words = [f"{named(kind, count)} ({_line(count, line)})" for kind, count, line in changed]
    return f"{' and '.join(words)} changed; nothing else did"


def _line(count: int, line: int) -> str:
    return f"line {line}" if count == 1 else f"the first in line {line}"


def _count(pieces: int) -> str:
    return "1 piece" if pieces == 1 else f"{pieces} pieces"


def _spoken(kind: str) -> str:
    return kind.replace("_", " ")
