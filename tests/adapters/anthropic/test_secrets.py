"""Keys and prompts stay out of errors, logs and ledgers."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from anthropic_wire import message, start, text, text_block
from asking import ask
from kvsdk import Client, KvsdkError, Message, Text
from loopback import Loopback, Scripted, sse

KEY = "sk-ant-SECRET-KEY"
PROMPT = "SECRET-PROMPT"


@pytest.fixture
def secret(connect: Callable[..., Client]) -> Client:
    return connect(api_key=KEY)


def ledger_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())


@pytest.mark.parametrize(
    "answer",
    [
        Scripted(
            {"type": "error", "error": {"type": "authentication_error", "message": "bad key"}}, status=401
        ),
        Scripted({"type": "error", "error": {"type": "api_error", "message": "oops"}}, status=500),
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


def test_a_key_that_the_server_repeats_is_blotted_out(secret: Client, loopback: Loopback) -> None:
    """A proxy that quotes the key in its refusal does not bring it into our error."""
    loopback.script(Scripted({"error": {"message": f"unknown key {KEY}, ask your admin"}}, status=401))
    with pytest.raises(KvsdkError, match="ask your admin") as caught:
        secret.generate("x")
    assert KEY not in f"{caught.value} {caught.value!r}"


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


def test_the_ledger_holds_no_prompt_no_answer_and_no_key(
    secret: Client, loopback: Loopback, ledger_path: Path
) -> None:
    """Nothing of the text is in the bytes of the ledger's files, of good calls and of failed ones."""
    loopback.script(
        message(text("SECRET-ANSWER")),
        Scripted({"error": {"message": f"echo {PROMPT}"}}, status=400),
        sse([start(), *text_block(0, "SECRET-ANSWER")]),
    )
    prompt = [Message.user(Text(PROMPT, cache=True))]
    secret.session("user-42").generate(prompt, system=PROMPT)
    with pytest.raises(KvsdkError):
        secret.generate(prompt)
    with pytest.raises(KvsdkError), secret.stream(prompt) as stream:
        list(stream)
    secret.close()
    content = ledger_bytes(ledger_path)
    assert b"user-42" in content
    for word in (PROMPT, "SECRET-ANSWER", KEY):
        assert word.encode() not in content
