"""Where breakpoints are among a prompt's tokens, by a template whose tokens are characters."""

from __future__ import annotations

from collections.abc import Sequence

from kvsdk import Message, Text, Tool
from kvsdk.prompt import Request

from kvsdk_vllm._places import keeps_of
from kvsdk_vllm._translate import to_template, to_tools
from kvsdk_vllm.store.wishes import Keep

TOOL = Tool("look", "Looks.", {"type": "object"}, cache="1h")


def render(request: Request) -> str:
    """As ChatML does it: tools in the system turn, and a turn's text in any role."""
    text = "".join(f"[{tool['function']['name']}]" for tool in to_tools(request))
    for turn in to_template(request):
        text += f"<{turn['role']}>{turn['content'].strip()}</>"
    return text


def keeps(request: Request) -> tuple[Keep, ...]:
    return keeps_of(request, tokens(render(request) + "<assistant>"), lambda part: tokens(render(part)))


def tokens(text: str) -> Sequence[int]:
    return [ord(character) for character in text]


def length(text: str) -> int:
    return len(text)


def test_a_system_text_ends_where_the_question_begins() -> None:
    """With what the template writes between them, which is the same for every question."""
    request = Request(messages=(Message.user("Which?"),), system=(Text("Manual.", cache="1h"),))
    assert keeps(request) == (Keep(length("<system>Manual.</><user>"), 3600.0),)


def test_of_two_system_texts_the_first_ends_in_the_middle() -> None:
    """No further than it is the same before any other text."""
    texts = (Text("One.", cache="5m"), Text("Two.", cache="12h"))
    request = Request(messages=(Message.user("Which?"),), system=texts)
    assert keeps(request) == (
        Keep(length("<system>One."), 300.0),
        Keep(length("<system>One.\n\nTwo.</><user>"), 43200.0),
    )


def test_a_part_of_a_message() -> None:
    """The turn's end is no part of it, as another text may follow."""
    parts = (Text("Document. ", cache=True), Text("Question?"))
    request = Request(messages=(Message.user(*parts),), system=(Text("S"),))
    assert keeps(request) == (Keep(length("<system>S</><user>Document."), None),)


def test_a_whole_message_and_what_comes_after() -> None:
    """The turn's end is part of it, since nothing else can follow."""
    request = Request(
        messages=(Message.user("One", cache=True), Message.assistant("Two", cache=True), Message.user("3"))
    )
    assert keeps(request) == (
        Keep(length("<user>One</>"), None),
        Keep(length("<user>One</><assistant>Two</>"), None),
    )


def test_a_tool() -> None:
    """Before everything else."""
    request = Request(messages=(Message.user("Look"),), system=(Text("S"),), tools=(TOOL,))
    assert keeps(request) == (Keep(length("[look]<"), 3600.0),)


def test_without_a_mark_nothing_is_kept() -> None:
    """And nothing is rendered."""
    request = Request(messages=(Message.user("Look"),))
    assert keeps_of(request, [1, 2], lambda _: 1 // 0) == ()  # type: ignore[arg-type, return-value]


def test_what_the_template_cannot_render_alone_is_not_kept() -> None:
    """Such as a conversation that ends with the assistant."""

    def refusing(request: Request) -> Sequence[int]:
        if request.messages[-1].role == "assistant":
            raise ValueError("roles must alternate")
        return tokens(render(request))

    request = Request(messages=(Message.user("One"), Message.assistant("Two", cache=True), Message.user("3")))
    assert keeps_of(request, tokens(render(request)), refusing) == (Keep(0, None),)
