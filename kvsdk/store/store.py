"""KV of prompts, kept in tiers: `KVStore`."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvsdk.errors import ConfigurationError
from kvsdk.kv.identity.fingerprint import Fingerprint
from kvsdk.kv.identity.hashing import TokenIds, pack_tokens
from kvsdk.kv.layouts.layout import Layout
from kvsdk.kv.models.spec import KVSpec
from kvsdk.store.entries.chunks import Prompt
from kvsdk.store.entries.ends import Source, Target
from kvsdk.store.entries.hinting import check_session, hints_of
from kvsdk.store.entries.identity import Digest, Identity, Media
from kvsdk.store.entries.images import LOSSY, Images
from kvsdk.store.entries.known import Known
from kvsdk.store.getting import Getter
from kvsdk.store.levels.levels import Levels
from kvsdk.store.putting import Putter
from kvsdk.store.reading import Reader
from kvsdk.store.results import Hit, Miss, Stored
from kvsdk.store.scrub import ScrubReport, scrub
from kvsdk.store.stats import Counts, StoreStats
from kvsdk.store.tiers.buffers import BufferPool
from kvsdk.store.tiers.tier import PolicyName, Size, Tier, parse_size

_AHEAD = 4
"""Chunks that are read at once: more gained nothing on one disk (`bench/store.py`)."""


class KVStore:
    """Keeps KV in tiers and gives it back, or a reason why not; never KV of something else. Thread-safe.

    Prompts are kept in chunks of 256 tokens, the last one shorter, under keys of the tokens, the model's
    fingerprint, tenant, LoRA and media, so that prompts share what they begin with. `put` writes to memory at
    once and to the other tiers behind; `get` finds the longest prefix that is there, checks every byte,
    converts it where the layout or block size differs, and proves the conversion. Nothing that fails in a
    tier is raised: it is a `Miss`, or a shorter `Hit`, and counted in `stats()`. After a fork, open
    another one.

    Args:
        tiers: `Memory(...)`, `Disk(...)`, `Object(...)` or others, fastest first; the store's from now on.
        fingerprint: Of the model and engine that the KV is of, with every REFUSE field known.
        policy: Which entries go first when a tier is full: `hints` (what the application said: expired, then
            what no living session uses, then the least recently used; never a head before its tail), `lru`.
        spec: Of the KV, where its sizes do not show in the tensors.
        rank: Which device's part of the KV it is, where the fingerprint has several.
        dtype: Store in fewer bits, such as `"fp8_e4m3"`, with a scale per layer, part and head: half the
            bytes, and no longer the same numbers. Off by default; such entries are apart from others.
        codec: `"zstd"` compresses without loss; such entries are apart from others.
        queue: How much may wait to be written, for each tier; then `put` waits.
        deadline_s: How long a tier may take for one chunk; then it is as if it were not there.
        spare_memory: Memory that is kept for the next chunks, since new memory is slow.
        clock: Seconds since 1970.

    Raises:
        InvalidRequest: An argument is wrong.
        ConfigurationError: A REFUSE field of the fingerprint is unknown, or a codec's library is missing.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        fingerprint: Fingerprint,
        policy: PolicyName = "hints",
        spec: KVSpec | None = None,
        rank: int = 0,
        dtype: str | None = None,
        codec: str | None = None,
        queue: Size = "512MiB",
        deadline_s: float = 30.0,
        spare_memory: Size = "256MiB",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._closed = True  # until all arguments are good
        self._closing = threading.RLock()
        self._process = os.getpid()
        stored_in = LOSSY.get(str(dtype), dtype)  # by any of its names it is the same
        self._identity = Identity(fingerprint=fingerprint, rank=rank, dtype=stored_in, codec=codec)
        self._identity.digest()  # says which field is unknown
        self._spec = spec
        self._clock = clock
        self._deadline_s = deadline_s
        self._counts = Counts()
        self._pool = BufferPool(parse_size(spare_memory, "spare_memory"))
        self._images = Images(self._identity, self._pool)
        self._levels = Levels(
            list(tiers),
            self._pool,
            threads=_AHEAD,
            policy=policy,
            clock=clock,
            queue_bytes=parse_size(queue, "queue"),
            deadline_s=deadline_s,
        )
        reader = Reader(self._levels, self._images, self._pool, ahead=_AHEAD, deadline_s=deadline_s)
        self._putter = Putter(self._identity, self._levels, self._images, self._pool)
        self._getter = Getter(self._identity, self._levels, reader)
        self._known = Known()
        self._closed = False
        atexit.register(self.close)

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the model and engine that the KV is of."""
        return self._identity.fingerprint

    def put(
        self,
        tokens: TokenIds,
        kv: Any,
        *,
        layout: Layout | str = "hf/dynamic",
        blocks: Sequence[int] | None = None,
        tenant: str | None = None,
        lora: Digest | None = None,
        media: Media = (),
        session: str | None = None,
        ttl: str | float | None = None,
        pin: bool = False,
    ) -> Stored:
        """Keep a prompt's KV. What is there already is not written again, only said to be used.

        The KV is read before this returns, so that the caller may overwrite it.

        Args:
            tokens: The prompt's token ids, flat.
            kv: Their KV, in the Python sequences and tensors that the layout says; `hf/dynamic` is a list per
                layer of (K, V), each `(1, num_kv_heads, tokens, head_dim)`. It may hold more tokens than the
                prompt; they are left out.
            layout: A name of the registry, axes, or a `Layout`.
            blocks: The prompt's blocks in logical order; 0, 1, ... by default.
            tenant: Whose it is: tenants never share.
            lora: Digest of the adapter.
            media: Digests of images and the like, or `(position, digest)`, in order.
            session: The name of who will want it again; until `end_session` others go first.
            ttl: How long it may be served, `"5m"`, `"1h"` or seconds; None for as long as there is room. Kept
                by memory and disk tiers; an object tier forgets by age (`Object(max_age_s=...)`).
            pin: Whether it must stay until `unpin` or its session's end.

        Raises:
            InvalidRequest: The tensors do not fit the layout or the fingerprint, or an argument is wrong.
            Unsupported: The model has layers whose state is no KV per token.
        """
        prompt = self._prompt(tokens, tenant, lora, media)
        hints = hints_of(session, ttl, pin, self._clock())
        source = Source.of(kv, layout, blocks, prompt.tokens, spec=self._spec, fingerprint=self.fingerprint)
        stored = self._putter.put(prompt, source, hints)
        self._known.learn(prompt, stored.tokens)
        self._counts.put(stored)
        return stored

    def get(
        self,
        tokens: TokenIds,
        *,
        layout: Layout | str = "hf/dynamic",
        blocks: Sequence[int] | None = None,
        tenant: str | None = None,
        lora: Digest | None = None,
        media: Media = (),
        out: Any = None,
        first_token: int = 0,
    ) -> Hit | Miss:
        """The KV of the longest prefix of a prompt that is stored.

        Args:
            tokens: The prompt's token ids, flat.
            layout: Which layout to give it in.
            blocks: Where in `out` it goes, the blocks in logical order.
            tenant: As in `put`.
            lora: As in `put`.
            media: As in `put`.
            out: Where to write; new tensors by default. Reuse it: new memory costs more than all else.
            first_token: From which token on, the first of a block. What is before is left as it is in `out`,
                and is in `Hit.tokens`, but in no tier's count.

        Returns:
            A `Hit`, whose `ended_by` says why it is not longer, or a `Miss` with the reason.

        Raises:
            InvalidRequest: `out` does not fit the layout or the model, has no room, or an argument is wrong.
        """
        prompt = self._prompt(tokens, tenant, lora, media)
        target = Target(
            layout,
            blocks,
            out,
            prompt.tokens,
            first_token=first_token,
            spec=self._spec,
            fingerprint=self.fingerprint,
        )
        if not prompt.tokens:
            return Miss("the prompt has no tokens")
        found = self._getter.get(
            prompt, target, lambda other: other.root(tenant=tenant, lora=lora, media=media)
        )
        if not first_token:
            self._known.learn(prompt, found.tokens)
        self._counts.get(prompt.tokens - first_token, found)
        return found

    def probe(
        self, tokens: TokenIds, *, tenant: str | None = None, lora: Digest | None = None, media: Media = ()
    ) -> int:
        """How many of a prompt's first tokens the tiers have now, by name; nothing is read or promised."""
        prompt = self._prompt(tokens, tenant, lora, media)
        found = self._getter.probe(prompt)
        self._known.learn(prompt, found)
        return found

    def lookup(
        self, tokens: TokenIds, *, tenant: str | None = None, lora: Digest | None = None, media: Media = ()
    ) -> int:
        """How many of a prompt's first tokens this store knows to be there, from its own puts and gets.

        No tier is asked and no token is hashed, so a scheduler may call it for every request. It is no
        promise: a tier may have evicted them since, and what others put is learnt by `get` and `probe`.
        """
        self._check_open()
        root = self._identity.root(tenant=tenant, lora=lora, media=media)
        return self._known.tokens(root, pack_tokens(tokens))

    def remove(
        self, tokens: TokenIds, *, tenant: str | None = None, lora: Digest | None = None, media: Media = ()
    ) -> bool:
        """Forget a prompt's chunks, pinned or not, in every tier; they are gone when this returns.

        Other prompts that begin with them lose them too.

        Returns:
            False where a tier has failed or did not answer in time: there they may still be.
        """
        prompt = self._prompt(tokens, tenant, lora, media)
        is_done = self._levels.remove(prompt.names)
        self._known.learn(prompt, 0)
        return is_done

    def unpin(
        self, tokens: TokenIds, *, tenant: str | None = None, lora: Digest | None = None, media: Media = ()
    ) -> None:
        """Let a prompt's chunks be evicted again, whoever pinned them."""
        names = self._prompt(tokens, tenant, lora, media).names
        self._levels.each("unpin", lambda tier: tier.unpin(names))

    def end_session(self, session: str) -> None:
        """The session is over: its pins are lifted, and what only it used is no longer kept before others."""
        self._check_open()
        name = check_session(session)
        self._levels.each("end a session", lambda tier: tier.end_session(name))

    def resize(self, tier: str, capacity: Size) -> None:
        """Set how much fits into a tier from now on; what is too much is evicted at once.

        Args:
            tier: The tier's name: `memory`, `disk`.
            capacity: Bytes, or text such as `"50GiB"`.

        Raises:
            InvalidRequest: There is no such tier, or that is no size.
            Unsupported: The tier has no capacity of its own.
            ConfigurationError: The tier has failed to.
        """
        self._check_open()
        self._levels.resize(tier, parse_size(capacity))

    def collect(self) -> int:
        """Remove what has expired and what nobody finished or refers to; how many entries."""
        self._check_open()
        return sum(
            self._levels.ask(level, "collect", lambda tier: tier.collect(), 0) for level in self._levels.all
        )

    def verify(self, *, remove: bool = False) -> dict[str, ScrubReport]:
        """Read every entry of every tier and check all of it, which takes long; by the tier's name.

        Args:
            remove: Whether to remove what is truncated, corrupt or foreign. What a newer kvsdk wrote stays.
        """
        self.flush(self._deadline_s)
        reports = {}
        for level in self._levels.all:
            found = scrub(level.tier, pool=self._pool, remove=remove, call=level.call)
            if found.removed:
                level.guard.count("corrupt", len(found.removed))
            reports[level.guard.name] = found
        return reports

    def stats(self) -> StoreStats:
        """What was asked and answered so far, and what each tier holds."""
        self._check_open()
        return self._counts.stats(self._levels)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Return when everything that was put is written and survives a power cut.

        What a tier did not take is not written; `stats()` says how much.

        Args:
            timeout_s: How long to wait; None for as long as something moves.

        Returns:
            False where it may not survive: time was up, a tier hangs or could not sync.
        """
        self._check_open()
        return self._levels.flush(timeout_s)

    def close(self) -> None:
        """Write what waits and let go of the tiers; done at exit too. Safe to call again."""
        if self._process != os.getpid():
            return
        with self._closing:  # whoever comes second waits until it is done
            if not self._closed:
                self._closed = True
                atexit.unregister(self.close)
                self._levels.close(self._deadline_s)

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prompt(self, tokens: TokenIds, tenant: str | None, lora: Digest | None, media: Media) -> Prompt:
        self._check_open()
        root = self._identity.root(tenant=tenant, lora=lora, media=media)
        return Prompt.of(pack_tokens(tokens), root)

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise ConfigurationError("the store was opened before a fork; open one in this process")
        if self._closed:
            raise ConfigurationError("the store is closed")
