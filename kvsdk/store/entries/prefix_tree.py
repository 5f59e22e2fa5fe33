"""The longest stored prefix of a prompt, found by its token ids and without hashing them.

A radix tree: an edge holds packed token ids, and the values at the ends that lie on it. Walking down is one
`bytes.startswith` per edge, a `memcmp` that copies nothing. Edges are cut between tokens only, and none is
longer than `edge_tokens`: that bounds what a change copies, and what a prompt that leaves an edge searches.

Kept true by every change:

- a leaf ends at its last value: no token is held that no value needs;
- a node with one child only holds more tokens with it than fit on one edge, else the two are one;
- in the order of use, a node stands after its children: the first is always a leaf.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from operator import ge
from typing import Generic, TypeAlias, TypeVar, overload

from kvsdk.errors import InvalidRequest

V = TypeVar("V")

_ID_BYTES = 4
_Run: TypeAlias = tuple["array[int]", tuple[V, ...], int]
"""The ends on an edge, their values, and how many of them the prompt has."""


class PrefixMatch(Sequence[tuple[int, V]]):
    """The values on a prompt's path as (end in tokens, value), ascending by end.

    Nothing is copied until it is read. It stays as it was found, whatever becomes of the tree; any number of
    threads may read it.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: list[_Run[V]]) -> None:
        self._runs = runs

    @property
    def end_tokens(self) -> int:
        """The deepest end, 0 where nothing was found."""
        if not self._runs:
            return 0
        ends, _, size = self._runs[-1]
        return ends[size - 1]

    def __len__(self) -> int:
        return sum(size for _, _, size in self._runs)

    def __iter__(self) -> Iterator[tuple[int, V]]:
        return chain.from_iterable(
            islice(zip(ends, values, strict=True), size) for ends, values, size in self._runs
        )

    def __reversed__(self) -> Iterator[tuple[int, V]]:
        for ends, values, size in reversed(self._runs):
            for index in range(size - 1, -1, -1):
                yield ends[index], values[index]

    @overload
    def __getitem__(self, index: int) -> tuple[int, V]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, V]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, V] | list[tuple[int, V]]:
        if isinstance(index, slice):
            return list(self)[index]
        left = index + len(self) if index < 0 else index
        if left >= 0:
            for ends, values, size in self._runs:
                if left < size:
                    return ends[left], values[left]
                left -= size
        raise IndexError(f"no value {index} among {len(self)}")

    def __repr__(self) -> str:
        return f"<PrefixMatch: {len(self)} values, {self.end_tokens} tokens>"


class _Node(Generic[V]):
    """An edge and what hangs below it. `ends` and `values` are replaced, never changed: matches hold them."""

    __slots__ = ("children", "edge", "ends", "parent", "place", "start_bytes", "values")

    def __init__(self, parent: _Node[V] | None, start_bytes: int, edge: bytes, place: int) -> None:
        self.parent: _Node[V] = self if parent is None else parent
        self.start_bytes = start_bytes
        self.edge = edge
        self.place = place  # its key in the order of use
        self.ends: array[int] = array("I")  # in tokens from the prompt's start, ascending
        self.values: tuple[V, ...] = ()
        self.children: dict[bytes, _Node[V]] = {}  # by their first token

    @property
    def end_bytes(self) -> int:
        return self.start_bytes + len(self.edge)


class PrefixTree(Generic[V]):
    """Values at ends of prefixes of packed token ids, found by the tokens themselves.

    Holds 4 bytes per token, 12 per value besides the value, and about 700 per edge; prompts that share a head
    share its edges. One thread at a time, lookups included: they change the order of use.

    Args:
        max_tokens: How many tokens are held at most, None for any number. Beyond them what was used least
            recently is forgotten, value by value from the tail of a prompt; no head goes before its tail. An
            edge of which a prompt finds some values counts as used whole.
        edge_tokens: The longest edge. A lookup pays about 1 µs per edge, a change copies two of them at most.

    Raises:
        InvalidRequest: An argument is below 1.
    """

    def __init__(self, *, max_tokens: int | None = None, edge_tokens: int = 16_384) -> None:
        if max_tokens is not None:
            _check_number(max_tokens, "max_tokens")
        _check_number(edge_tokens, "edge_tokens")
        self._max_bytes = None if max_tokens is None else max_tokens * _ID_BYTES
        self._edge_bytes = edge_tokens * _ID_BYTES
        self._root: _Node[V] = _Node(None, 0, b"", 0)
        self._order: OrderedDict[int, _Node[V]] = OrderedDict()  # of use, the latest last; without the root
        self._places = count(1)
        self._held_bytes = 0
        self._values = 0

    def __len__(self) -> int:
        """How many values are held."""
        return self._values

    @property
    def held_tokens(self) -> int:
        """How many tokens are held, those of shared heads once."""
        return self._held_bytes // _ID_BYTES

    # -------------------------------------------------------------- look up

    def longest(self, packed: bytes) -> PrefixMatch[V]:
        """Every value whose prefix `packed` begins with; `[-1]` is that of the longest.

        Args:
            packed: The prompt's token ids, as from `kvsdk.kv.identity.hashing.pack_tokens`.

        Raises:
            InvalidRequest: `packed` is not bytes, or not whole tokens.
        """
        _check_packed(packed)
        path, reach_bytes = self._walk(packed, len(packed))
        if path and reach_bytes < path[-1].end_bytes:
            left = path.pop()
            size = bisect_right(left.ends, reach_bytes // _ID_BYTES)
            tail: list[_Run[V]] = [(left.ends, left.values, size)] if size else []
            self._touch([*path, left] if size else path)
        else:
            tail = []
            self._touch(path)
        runs = [(node.ends, node.values, len(node.values)) for node in path if node.values]
        return PrefixMatch(runs + tail)

    def _walk(self, packed: bytes, stop_bytes: int) -> tuple[list[_Node[V]], int]:
        """The edges along which the prompt runs, and up to where; of the last it may have a part only."""
        path: list[_Node[V]] = []
        node, at = self._root, 0
        while at < stop_bytes:
            child = node.children.get(packed[at : at + _ID_BYTES])
            if child is None:
                break
            path.append(child)
            if not packed.startswith(child.edge, at, stop_bytes):
                return path, at + _shared_bytes(child.edge, packed, at, stop_bytes)
            node, at = child, at + len(child.edge)
        return path, at

    def _touch(self, path: list[_Node[V]]) -> None:
        """Note that a path was used, deepest first: so a node stands after its children."""
        touch = self._order.move_to_end
        for node in reversed(path):
            touch(node.place)

    # -------------------------------------------------------------- insert

    def insert(self, packed: bytes, values: Iterable[tuple[int, V]]) -> None:
        """Keep a value at each of some ends of the prompt's prefixes; one that is there is replaced.

        Args:
            packed: The prompt's token ids. Those behind the last end are not kept.
            values: (end in tokens, value), ascending by end, 1 <= end <= the prompt's tokens.

        Raises:
            InvalidRequest: `packed` is not bytes or not whole tokens, or the ends are none of this prompt's.
                Nothing was changed.
        """
        _check_packed(packed)
        ends, items = _columns(values, len(packed) // _ID_BYTES)
        if not ends:
            return
        stop_bytes = ends[-1] * _ID_BYTES
        path, reach_bytes = self._walk(packed, stop_bytes)
        lower = path[-1] if path and reach_bytes < min(path[-1].end_bytes, stop_bytes) else None
        if lower is not None:
            path[-1] = self._split(lower, reach_bytes)
        path += self._grow(path[-1] if path else self._root, packed, reach_bytes, stop_bytes)
        self._put(path, ends, items)
        self._touch(path)
        if lower is not None:
            self._join(lower.parent)
            self._join_child(lower)
        self._forget()

    def _split(self, lower: _Node[V], at_bytes: int) -> _Node[V]:
        """Cut an edge in two. The lower part stays the node that it was, the upper is new."""
        cut = at_bytes - lower.start_bytes
        upper = self._add(lower.parent, lower.start_bytes, lower.edge[:cut])
        size = bisect_right(lower.ends, at_bytes // _ID_BYTES)
        upper.ends, lower.ends = lower.ends[:size], lower.ends[size:]
        upper.values, lower.values = lower.values[:size], lower.values[size:]
        lower.parent, lower.start_bytes, lower.edge = upper, at_bytes, lower.edge[cut:]
        upper.children[lower.edge[:_ID_BYTES]] = lower
        return upper

    def _grow(self, node: _Node[V], packed: bytes, at_bytes: int, stop_bytes: int) -> list[_Node[V]]:
        """Hang the prompt's tokens from `at_bytes` on below a node; a leaf's own edge is filled first."""
        self._held_bytes += stop_bytes - at_bytes
        if node is not self._root and not node.children and len(node.edge) < self._edge_bytes:
            room = self._edge_bytes - len(node.edge)
            node.edge += packed[at_bytes : min(at_bytes + room, stop_bytes)]
            at_bytes += room
        new = []
        for start in range(at_bytes, stop_bytes, self._edge_bytes):
            node = self._add(node, start, packed[start : min(start + self._edge_bytes, stop_bytes)])
            new.append(node)
        return new

    def _add(self, parent: _Node[V], start_bytes: int, edge: bytes) -> _Node[V]:
        node = _Node(parent, start_bytes, edge, next(self._places))
        parent.children[edge[:_ID_BYTES]] = self._order[node.place] = node
        return node

    def _put(self, path: list[_Node[V]], ends: array[int], values: tuple[V, ...]) -> None:
        """Lay the values onto the edges on which they end."""
        first = bisect_right(ends, path[0].start_bytes // _ID_BYTES)
        for node in path:
            last = bisect_right(ends, node.end_bytes // _ID_BYTES, first)
            if last > first:
                before = len(node.ends)
                _merge(node, ends[first:last], values[first:last])
                self._values += len(node.ends) - before
            first = last

    # -------------------------------------------------------------- remove

    def remove(self, packed: bytes, end: int) -> bool:
        """Forget the value at one end of the prompt's prefixes; says whether there was one.

        Args:
            packed: The prompt's token ids; those behind `end` do not matter.
            end: In tokens.

        Raises:
            InvalidRequest: As `longest`; `end` is no end of this prompt.
        """
        _check_packed(packed)
        _check_number(end, "end")
        stop_bytes = end * _ID_BYTES
        if stop_bytes > len(packed):
            raise InvalidRequest(f"end is at most {len(packed) // _ID_BYTES}, not {end}", field="end")
        path, reach_bytes = self._walk(packed, stop_bytes)
        if reach_bytes < stop_bytes:
            return False
        node = path[-1]
        index = bisect_left(node.ends, end)
        if index == len(node.ends) or node.ends[index] != end:
            return False
        node.ends = node.ends[:index] + node.ends[index + 1 :]
        node.values = node.values[:index] + node.values[index + 1 :]
        self._values -= 1
        self._tidy(node)
        return True

    def _forget(self) -> None:
        """Cut the tails of the least recently used leaves until no more is held than may be."""
        while self._max_bytes is not None and self._held_bytes > self._max_bytes:
            leaf = next(iter(self._order.values()))
            keep_bytes = leaf.end_bytes - (self._held_bytes - self._max_bytes)
            size = bisect_right(leaf.ends, keep_bytes // _ID_BYTES)
            self._values -= len(leaf.values) - size
            leaf.ends, leaf.values = leaf.ends[:size], leaf.values[:size]
            self._tidy(leaf)

    def _tidy(self, node: _Node[V]) -> None:
        """After a node lost values: drop what is empty, cut what no value needs, join what fits together."""
        while node is not self._root and not node.children:
            if node.values:
                surplus = node.end_bytes - node.ends[-1] * _ID_BYTES
                if surplus:
                    node.edge = node.edge[:-surplus]
                    self._held_bytes -= surplus
                break
            self._held_bytes -= len(node.edge)
            del node.parent.children[node.edge[:_ID_BYTES]], self._order[node.place]
            node = node.parent
        self._join(self._join_child(node))

    def _join_child(self, node: _Node[V]) -> _Node[V]:
        """The node, or its only child once that has taken it in."""
        if len(node.children) != 1:
            return node
        (child,) = node.children.values()
        return child if self._join(child) else node

    def _join(self, node: _Node[V]) -> bool:
        """Take the parent into a node that is its only child, if both fit on one edge."""
        parent = node.parent
        if parent is self._root or len(parent.children) > 1:
            return False
        if len(parent.edge) + len(node.edge) > self._edge_bytes:
            return False
        node.parent, node.start_bytes = parent.parent, parent.start_bytes
        node.edge = parent.edge + node.edge
        node.ends, node.values = parent.ends + node.ends, parent.values + node.values
        node.parent.children[node.edge[:_ID_BYTES]] = node
        del self._order[node.place]  # the place of the head is the later one; who keeps it keeps the tail too
        node.place = parent.place
        self._order[node.place] = node
        return True


def _shared_bytes(edge: bytes, packed: bytes, at_bytes: int, stop_bytes: int) -> int:
    """How many bytes of an edge the prompt has at `at_bytes`, in whole tokens; the search copies nothing."""
    view = memoryview(edge)
    low, high = 1, min(len(edge), stop_bytes - at_bytes) // _ID_BYTES  # a child is found by its first token
    while low < high:
        middle = (low + high + 1) // 2
        if packed.startswith(view[low * _ID_BYTES : middle * _ID_BYTES], at_bytes + low * _ID_BYTES):
            low = middle
        else:
            high = middle - 1
    return low * _ID_BYTES


def _merge(node: _Node[V], ends: array[int], values: tuple[V, ...]) -> None:
    """Add values to those of an edge; at an end that both have, the new one stays."""
    if not node.ends or node.ends[-1] < ends[0]:
        node.ends, node.values = node.ends + ends, node.values + values
    elif node.ends == ends:
        node.values = values
    else:
        merged = dict(zip(node.ends, node.values, strict=True))
        merged.update(zip(ends, values, strict=True))
        node.ends = array("I", sorted(merged))
        node.values = tuple(merged[end] for end in node.ends)


def _check_packed(packed: bytes) -> None:
    if not isinstance(packed, bytes) or len(packed) % _ID_BYTES:
        what = f"{len(packed)} bytes" if isinstance(packed, bytes) else type(packed).__name__
        raise InvalidRequest(
            f"packed is bytes, {_ID_BYTES} per token, as from pack_tokens, not {what}", field="packed"
        )


def _check_number(number: int, name: str) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidRequest(f"{name} is a number of at least 1, not {number!r}", field=name)


def _columns(values: Iterable[tuple[int, V]], tokens: int) -> tuple[array[int], tuple[V, ...]]:
    """The ends and the values, once the ends are seen to be ends of this prompt in order."""
    try:
        pairs = list(values)
        ends = array("I", [end for end, _ in pairs])
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            "values is of pairs (end in tokens, value), 1 <= end <= the prompt's tokens", field="values"
        ) from error
    if ends and not (ends[0] >= 1 and ends[-1] <= tokens):
        found = f"{ends[0]} to {ends[-1]}"
        raise InvalidRequest(f"values have ends from 1 to {tokens}, not from {found}", field="values")
    if any(map(ge, ends, islice(ends, 1, None))):
        raise InvalidRequest("values are ascending by end, each end once", field="values")
    return ends, tuple([value for _, value in pairs])
