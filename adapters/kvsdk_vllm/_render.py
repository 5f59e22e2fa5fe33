"""From a call to what the engine takes: token ids and sampling settings, and how its text is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from kvsdk.backend import Call
from kvsdk.errors import InvalidRequest, RequestRejected, UnsupportedSetting
from kvsdk.prompt import Request

from kvsdk_vllm._places import keeps_of
from kvsdk_vllm._salt import tenant_salt
from kvsdk_vllm._shared import SharedEngine
from kvsdk_vllm._tools import TEMPLATE_PARSER, ForcedCall, ParsedText, PlainText, make_parser
from kvsdk_vllm._translate import to_call_schema, to_template, to_tools
from kvsdk_vllm.store.wishes import Wishes

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

Sieve = PlainText | ForcedCall | ParsedText


@cache
def tools_template() -> str:
    """The chat template for models whose own has no place for tools."""
    return files("kvsdk_vllm").joinpath("templates/chatml_tools.jinja").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Renderer:
    """Turns a call's messages into token ids.

    Attributes:
        chat_template: A template of the user's own, or None for the model's.
        tool_parser: The name of vLLM's parser for this model's tool calls, or None.
    """

    chat_template: str | None = None
    tool_parser: str | None = None

    def token_ids(self, engine: SharedEngine, call: Call) -> tuple[list[int], str | None]:
        """The prompt's token ids and the parser for its answer; nothing of a breakpoint is in it.

        Raises:
            UnsupportedSetting: The call has tools and the model's template no place for them.
        """
        template, parser = self._template(engine, bool(call.body["tools"]))
        return self._ids(engine, call.body["messages"], call.body["tools"], template, is_whole=True), parser

    def prefix_ids(self, engine: SharedEngine, request: Request, *, has_tools: bool) -> list[int]:
        """The token ids of the beginning of a prompt, by the template that the whole of it has."""
        template, _ = self._template(engine, has_tools)
        return self._ids(engine, to_template(request), to_tools(request), template, is_whole=False)

    def _ids(
        self, engine: SharedEngine, messages: Any, tools: Any, template: str | None, *, is_whole: bool
    ) -> list[int]:
        with engine.tokenizer_lock:
            rendered = engine.tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                chat_template=template,
                add_generation_prompt=is_whole,
                tokenize=True,
                return_dict=True,
            )
        return list(rendered["input_ids"])

    def _template(self, engine: SharedEngine, has_tools: bool) -> tuple[str | None, str | None]:
        if not has_tools or self.chat_template is not None:
            return self.chat_template, self.tool_parser if has_tools else None
        own = engine.tokenizer.get_chat_template(tools=[{}])
        if "tools" in own:
            return None, self.tool_parser
        if "<|im_start|>" not in own:
            raise UnsupportedSetting(
                "the model's chat template has no place for tools; pass chat_template= and tool_parser=",
                field="tools",
                backend="vllm",
            )
        return tools_template(), self.tool_parser or TEMPLATE_PARSER


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call as the engine takes it, what reads its text, and notes for the caller."""

    prompt: TokensPrompt
    params: SamplingParams
    sieve: Sieve
    notes: tuple[str, ...]


def prepare(engine: SharedEngine, call: Call, renderer: Renderer) -> Prepared:
    """Render a call for the engine.

    Raises:
        RequestRejected: The prompt does not fit into the model's context.
        InvalidRequest: A sampling setting in `extra` is none.
    """
    assert call.request is not None
    token_ids, parser = renderer.token_ids(engine, call)
    if len(token_ids) >= engine.max_model_len:
        raise RequestRejected(
            f"the prompt has {len(token_ids)} tokens; the engine's max_model_len is {engine.max_model_len}, "
            "the answer included",
            backend="vllm",
        )
    prompt: TokensPrompt = {"prompt_token_ids": token_ids}
    salt = tenant_salt(call.request.tenant)
    if salt is not None:
        prompt["cache_salt"] = salt
    schema = to_call_schema(call.request)
    sieve, notes = _sieve(engine, call, parser, is_forced=schema is not None)
    if schema is None and call.request.response_format is not None:
        schema = dict(call.request.response_format.schema)
    params = _sampling(engine, call, schema, keep_special=isinstance(sieve, ParsedText))
    if engine.has_store:
        _ask_store(engine, call, renderer, token_ids, params)
    return Prepared(prompt, params, sieve, notes)


def _ask_store(
    engine: SharedEngine, call: Call, renderer: Renderer, token_ids: list[int], params: SamplingParams
) -> None:
    """Have the prefixes up to the breakpoints kept, unless the caller asks the store for something else."""
    assert call.request is not None
    has_tools = bool(call.body["tools"])
    keeps = keeps_of(
        call.request, token_ids, lambda part: renderer.prefix_ids(engine, part, has_tools=has_tools)
    )
    extra = params.extra_args or {}
    asked = {**Wishes(keep=keeps).to_params(), **extra.get("kv_transfer_params", {})}
    params.extra_args = {**extra, "kv_transfer_params": asked}


def _sieve(
    engine: SharedEngine, call: Call, parser: str | None, *, is_forced: bool
) -> tuple[Sieve, tuple[str, ...]]:
    tools = call.body["tools"]
    if is_forced:
        return ForcedCall(), ()
    if not tools:
        return PlainText(), ()
    if parser is None:
        return PlainText(), ("no tool_parser is set: tool calls stay in the text",)
    if parser not in engine.parsers:
        engine.parsers[parser] = make_parser(parser, engine.tokenizer)
    return ParsedText(engine.parsers[parser], tools), ()


def _sampling(
    engine: SharedEngine, call: Call, schema: dict[str, Any] | None, *, keep_special: bool
) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    assert call.request is not None
    request = call.request
    settings: dict[str, Any] = {
        **engine.sampling,
        "max_tokens": 1 if request.is_prewarm else request.max_tokens,
        "stop": list(request.stop) or None,
        "output_kind": RequestOutputKind.DELTA,
        "skip_special_tokens": not keep_special,  # some models' call tags are special tokens
    }
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if schema is not None:
        settings["structured_outputs"] = StructuredOutputsParams(json=schema)
    try:
        return SamplingParams(**{**settings, **call.extra})
    except (TypeError, ValueError, VLLMValidationError) as error:
        raise InvalidRequest(f"the engine refuses a sampling setting: {error}", backend="vllm") from error
