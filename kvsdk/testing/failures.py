"""Standard tests: what goes wrong, and what is kept of it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsdk.client import Client
from kvsdk.cost import LedgerRow
from kvsdk.errors import BackendError, BackendUnavailable, KvsdkError, RateLimited, StreamTruncated
from kvsdk.prompt import Message, Text
from kvsdk.reply import Reply, TextDelta
from kvsdk.resilience import RetryPolicy
from kvsdk.testing.fixtures import API_KEY, Fixtures, script
from kvsdk.testing.server import VendorServer

PROMPT = "SECRET-PROMPT"
ANSWER = "SECRET-ANSWER"
AT_ONCE = RetryPolicy(attempts=2, first_wait_s=0.0)
STREAMS = pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])

Rows = Callable[[], list[LedgerRow]]


class FailureTests(Fixtures):
    """Refusals, retries, streams that end too early, and secrets."""

    @STREAMS
    @pytest.mark.parametrize(
        ("kind", "leaf"), [("rate_limited", RateLimited), ("failed", BackendUnavailable)]
    )
    def test_an_error_is_of_our_tree_and_says_where(
        self, client: Client, scripted: VendorServer, rows: Rows, kind: str, leaf: type, streams: bool
    ) -> None:
        """Its class, the vendor's words, backend, model, request id and cause; and its row."""
        getattr(scripted, kind)("The valves are busy")
        with pytest.raises(BackendError, match="The valves are busy") as caught:
            self._ask(client, "x", streams)
        error = caught.value
        assert type(error) is leaf
        assert (error.backend, error.model) == (client.backend.scheme, client.backend.model)
        assert error.request_id
        assert error.__cause__ is not None
        (row,) = rows()
        assert (row.state, row.error, row.request_id) == ("failed", leaf.__name__, error.request_id)
        assert row.reply_id is None

    @STREAMS
    def test_a_retry_is_an_attempt_of_one_operation(
        self, connect: Callable[..., Client], scripted: VendorServer, rows: Rows, streams: bool
    ) -> None:
        """Refused and sent again: the same body twice, a row for each, one operation id."""
        scripted.rate_limited("Slow down")
        script(scripted, streams=streams)
        reply = self._ask(connect(retry=AT_ONCE), "x", streams)
        assert reply.attempts == 2
        assert len(scripted.bodies) == 2
        assert scripted.bodies[0] == scripted.bodies[1]
        found = sorted(rows(), key=lambda row: row.attempt)
        assert [(row.attempt, row.state) for row in found] == [(1, "failed"), (2, "ok")]
        assert {row.operation_id for row in found} == {reply.operation_id}
        assert len({row.id for row in found}) == 2

    @STREAMS
    def test_only_our_policy_retries(
        self, connect: Callable[..., Client], scripted: VendorServer, rows: Rows, streams: bool
    ) -> None:
        """The vendor's SDK does not send again by itself: as many requests as rows."""
        for _ in range(5):
            scripted.failed("Oops")
        for policy, requests in ((False, 1), (AT_ONCE, 3)):
            with pytest.raises(BackendUnavailable):
                self._ask(connect(retry=policy), "x", streams)
            assert len(scripted.bodies) == len(rows()) == requests

    # ------------------------------------------------------------------ streams

    def test_a_cut_stream_raises_with_what_had_arrived(
        self, client: Client, scripted: VendorServer, rows: Rows
    ) -> None:
        """`StreamTruncated` has the reply so far, and the row is `partial`, with a count of output."""
        scripted.cut("Valve", " A")
        with client.stream("x", **self.call_options) as stream, pytest.raises(StreamTruncated) as caught:
            list(stream)
        error = caught.value
        assert (error.backend, error.model) == (client.backend.scheme, client.backend.model)
        assert error.request_id
        assert isinstance(error.reply, Reply)
        assert error.reply.text == "Valve A"
        (row,) = rows()
        assert (row.state, row.error) == ("partial", "StreamTruncated")
        assert row.request_id == error.request_id
        assert row.usage.output_tokens
        assert row.usage.meter("output_tokens") == "estimated"

    def test_leaving_early_is_a_cancelled_row(
        self, client: Client, vendor_server: VendorServer | None, rows: Rows
    ) -> None:
        """Who leaves after the first piece has a reply with it, and what it cost is a row."""
        script(vendor_server, streams=True)
        with client.stream("Count from one to ten.", **self.call_options) as stream:
            first = next(stream)
        assert isinstance(first, TextDelta)
        assert stream.reply.text.startswith(first.text)
        (row,) = rows()
        assert (row.state, row.operation_id) == ("cancelled", stream.reply.operation_id)
        assert row.usage.output_tokens

    # ------------------------------------------------------------------ secrets

    @STREAMS
    @pytest.mark.parametrize("kind", ["rate_limited", "failed"])
    def test_an_error_shows_neither_key_nor_prompt(
        self,
        client: Client,
        scripted: VendorServer,
        caplog: pytest.LogCaptureFixture,
        kind: str,
        streams: bool,
    ) -> None:
        """Not in its text, its repr or a log at DEBUG, even when the server repeats the key."""
        caplog.set_level(logging.DEBUG, logger="kvsdk")
        getattr(scripted, kind)(f"Key {API_KEY} is busy")
        with pytest.raises(KvsdkError, match="is busy") as caught:
            self._ask(client, PROMPT, streams)
        shown = f"{caught.value!r} {''.join(traceback.format_exception_only(caught.value))}"
        shown += "".join(record.getMessage() for record in caplog.records if record.name == "kvsdk")
        assert API_KEY not in shown
        assert PROMPT not in shown

    def test_the_ledger_holds_no_prompt_no_answer_and_no_key(
        self, client: Client, vendor_server: VendorServer | None, ledger_path: Path
    ) -> None:
        """Of good calls, refused ones and broken ones there is nothing of the text in the ledger's files."""
        prompt = [Message.user(Text(PROMPT, cache=True))]
        script(vendor_server, ANSWER)
        client.session("s-1").generate(prompt, system=PROMPT, **self.call_options)
        if vendor_server is not None:
            vendor_server.failed(f"{PROMPT} for {API_KEY}")
            with pytest.raises(KvsdkError):
                self._ask(client, PROMPT, streams=False)
            vendor_server.cut(ANSWER)
            with pytest.raises(KvsdkError):
                self._ask(client, PROMPT, streams=True)
        client.close()
        content = b"".join(file.read_bytes() for file in ledger_path.parent.iterdir())
        assert b"s-1" in content
        for secret in (PROMPT, ANSWER, API_KEY):
            assert secret.encode() not in content

    def _ask(self, client: Client, prompt: str, streams: bool) -> Reply:
        """Ask, and read to the end."""
        if not streams:
            return client.generate(prompt, **self.call_options)
        with client.stream(prompt, **self.call_options) as stream:
            list(stream)
        return stream.reply
