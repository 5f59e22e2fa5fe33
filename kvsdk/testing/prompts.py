"""Standard tests: what of a call is sent, and what is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from kvsdk.backend import Capabilities
from kvsdk.client import Client
from kvsdk.errors import UnknownKeyword, UnsupportedSetting
from kvsdk.prompt import Message, Text, Thinking, Tool
from kvsdk.testing.bodies import assert_extends, breakpoints, prefix_blocks
from kvsdk.testing.fixtures import Fixtures, script
from kvsdk.testing.server import VendorServer

MANUAL = "Before a valve is opened, the pressure behind it is read and written down. " * 8
SCHEMA = {
    "type": "object",
    "properties": {"valve": {"type": "string"}, "at": {"type": "integer"}},
    "required": ["valve", "at"],
}

#: A value for each optional setting.
SETTINGS: dict[str, Any] = {
    "temperature": 0.5,
    "stop": "END",
    "tools": [Tool("pressure", "Pressure at a valve.", SCHEMA)],
    "tool_choice": "none",
    "response_format": SCHEMA,
}


class PromptTests(Fixtures):
    """Prefix, breakpoints, and settings."""

    @pytest.mark.parametrize("cache", [None, "auto"])
    def test_a_tool_loop_extends_the_prefix(
        self, client: Client, scripted: VendorServer, cache: Literal["auto"] | None
    ) -> None:
        """The second request begins with the whole first one; then come reasoning, call and result."""
        scripted.tool_call("pressure", {"valve": "B", "at": 1})
        scripted.whole("1 bar.")
        tools = [Tool("pressure", "Pressure at a valve.", SCHEMA)]
        messages = [Message.user("Pressure at B?")]
        first = client.generate(messages, system=MANUAL, tools=tools, cache=cache, **self.call_options)
        (call,) = first.tool_calls
        assert (call.name, call.arguments) == ("pressure", {"valve": "B", "at": 1})
        assert first.stop_reason == "tool_use"
        messages += [first.message, Message.tool(call.id, "B: 1 bar")]
        second = client.generate(messages, system=MANUAL, tools=tools, cache=cache, **self.call_options)
        assert second.text == "1 bar."
        one, two = scripted.bodies
        assert_extends(one, two)
        reasoning = [part.data for part in first.parts if isinstance(part, Thinking)]
        assert all(_holds(two, data) for data in reasoning)
        added = "".join(prefix_blocks(two)[len(prefix_blocks(one)) :])
        assert call.id in added
        assert "B: 1 bar" in added

    def test_a_breakpoint_never_changes_the_prompt(
        self, client: Client, vendor_server: VendorServer | None, capabilities: Capabilities
    ) -> None:
        """With and without marks the prompt is the same, block by block, or token by token on an engine."""
        plain: dict[str, Any] = {"system": MANUAL, "messages": [Message.user("Which valve?")]}
        marked: dict[str, Any] = {
            "system": [Text(MANUAL, cache=True)],
            "messages": [Message.user("Which valve?", cache=True)],
        }
        if vendor_server is not None:
            for call in (plain, marked):
                script(vendor_server)
                client.generate(**call, **self.call_options)
            one, two = vendor_server.bodies
            assert prefix_blocks(one) == prefix_blocks(two)
            assert not breakpoints(one)
        elif capabilities.exact_tokens:
            assert client.count_tokens(**plain) == client.count_tokens(**marked)
        else:
            pytest.skip("neither bodies nor exact counts to compare")

    def test_a_breakpoint_is_sent_or_the_report_says_why_not(
        self, client: Client, vendor_server: VendorServer | None, capabilities: Capabilities
    ) -> None:
        """Each mark has an entry in the reply; it is in the body only where the backend takes marks."""
        script(vendor_server)
        reply = client.generate(
            [Message.user("Which valve?", cache=True)],
            system=[Text(MANUAL, cache=True)],
            **self.call_options,
        )
        report = reply.cache.breakpoints
        assert len(report) == 2
        assert all(entry.status == "honoured" or entry.reason for entry in report)
        sent = [entry for entry in report if entry.status in ("honoured", "mapped")]
        if capabilities.breakpoints != "honoured":
            assert sent == []
        if vendor_server is not None:
            assert len(breakpoints(vendor_server.bodies[0])) == len(sent)

    def test_what_is_not_for_the_backend_is_never_sent(self, client: Client, scripted: VendorServer) -> None:
        """Another scheme's `extra` and the ledger's `metadata` stay here."""
        script(scripted)
        other = "openai" if client.backend.scheme == "anthropic" else "anthropic"
        client.generate(
            "x", extra={other: {"for_another": 1}}, metadata={"label": "for-the-ledger"}, **self.call_options
        )
        sent = json.dumps(list(scripted.bodies))
        assert "for_another" not in sent
        assert "for-the-ledger" not in sent

    def test_an_unknown_keyword_is_refused(self, client: Client, vendor_server: VendorServer | None) -> None:
        """A keyword that calls do not have is an error that names it, and nothing is sent."""
        with pytest.raises(UnknownKeyword, match="max_tokenz"):
            client.generate("x", max_tokenz=5)  # type: ignore[call-arg]
        assert vendor_server is None or not vendor_server.bodies

    @pytest.mark.parametrize("name", sorted(SETTINGS))
    def test_a_setting_that_is_not_taken_is_refused_or_left_out(
        self, client: Client, vendor_server: VendorServer | None, capabilities: Capabilities, name: str
    ) -> None:
        """An error before anything is sent; with `on_unsupported="drop"`, a note in the reply."""
        if name in capabilities.settings:
            return
        call: dict[str, Any] = {**self.call_options, name: SETTINGS[name]}
        if name == "tool_choice" and "tools" in capabilities.settings:
            call["tools"] = SETTINGS["tools"]
        with pytest.raises(UnsupportedSetting) as caught:
            client.generate("x", **call)
        assert caught.value.field == name
        assert vendor_server is None or not vendor_server.bodies
        script(vendor_server)
        reply = client.generate("x", **call, on_unsupported="drop")
        assert any(name in note for note in reply.cache.notes)


def _holds(node: Any, value: Any) -> bool:
    """Whether a value stands somewhere in a body, unchanged."""
    if node == value:
        return True
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    return any(_holds(child, value) for child in children)
