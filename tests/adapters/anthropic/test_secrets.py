"""Keys and prompts stay out of the errors that the standard tests do not look at."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import pytest
from anthropic_wire import start, text_block
from asking import ask
from kvsdk import Client, KvsdkError, Message
from loopback import Loopback, Scripted, sse

KEY = "sk-ant-SECRET-KEY"
PROMPT = "SECRET-PROMPT"


@pytest.fixture
def secret(connect: Callable[..., Client]) -> Client:
    return connect(api_key=KEY)


@pytest.mark.parametrize(
    "answer",
    [
        Scripted(b"<html>", content_type="text/html"),
        sse([start(), *text_block(0, "A")]),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_no_error_shows_a_key_or_a_prompt(
    secret: Client, loopback: Loopback, answer: Scripted, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in an error's text or repr, nor in its traceback, nor in a log at DEBUG."""
    caplog.set_level(logging.DEBUG, logger="kvsdk")
    loopback.script(answer)
    with pytest.raises(KvsdkError) as caught:
        ask(secret, PROMPT, streams=streams, system=PROMPT)
    shown = f"{caught.value} {caught.value!r} {''.join(traceback.format_exception_only(caught.value))}"
    shown += "".join(record.getMessage() for record in caplog.records if record.name == "kvsdk")
    assert KEY not in shown
    assert PROMPT not in shown


@pytest.mark.parametrize(
    "messages",
    [
        [PROMPT, 5],
        [{"role": "user", "content": [{"type": "image", "data": PROMPT}]}],
        [{"role": "user", "content": [{"type": "text"}, PROMPT]}],
        [Message.user(PROMPT), {"role": "nobody", "content": PROMPT}],
    ],
)
def test_a_wrong_call_does_not_show_its_prompt(secret: Client, messages: list) -> None:
    """The place at fault is named, its content is not."""
    with pytest.raises(KvsdkError) as caught:
        secret.generate(messages)
    assert PROMPT not in f"{caught.value} {caught.value!r}"
