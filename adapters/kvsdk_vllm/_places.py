"""Where a prompt's breakpoints are among its tokens.

A prefix is rendered on its own and compared with the whole prompt: the tokens that both begin with are the
prefix's. So whatever a chat template does with a text, what is taken for the prefix is the same in every
prompt that begins so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jinja2 import TemplateError
from kvsdk.prompt import TTL_SECONDS, Message, Request
from kvsdk.prompt.request import Block

from kvsdk_vllm.store.wishes import Keep

_ANY = (Message.user("."),)


def keeps_of(
    request: Request, token_ids: Sequence[int], render: Callable[[Request], Sequence[int]]
) -> tuple[Keep, ...]:
    """The prefixes up to each breakpoint; one that the template cannot render alone has no tokens.

    Args:
        request: With its breakpoints as they were planned.
        token_ids: The whole prompt.
        render: Makes a request's tokens, without the beginning of an answer.
    """
    found = []
    for block, mark in zip(request.blocks(), request.marks(), strict=True):
        if mark is not None:
            ttl_s = None if mark.ttl is None else float(TTL_SECONDS[mark.ttl])
            found.append(Keep(_common(token_ids, _rendered(_up_to(request, block), render)), ttl_s))
    return tuple(found)


def _up_to(request: Request, block: Block) -> Request:
    """A request that ends with this block; the template gets a message where none is left."""
    if block.section == "tools":
        return replace(request, tools=request.tools[: block.position + 1], system=(), messages=_ANY)
    if block.section == "system":
        return replace(request, system=request.system[: block.position + 1], messages=_ANY)
    assert block.message is not None
    last = request.messages[block.message]
    cut = replace(last, parts=last.parts[: block.position + 1])
    return replace(request, messages=(*request.messages[: block.message], cut))


def _rendered(request: Request, render: Callable[[Request], Sequence[int]]) -> Sequence[int]:
    try:
        return render(request)
    except (TemplateError, ValueError, TypeError, KeyError, IndexError):
        return ()


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))
