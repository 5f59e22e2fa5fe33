"""The shape of an answer, as OpenAI's structured outputs write it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvsdk.prompt import ResponseFormat

_NAME_LIMIT = 64
_MAPS = ("properties", "$defs", "definitions")
_NOT_STRICT = frozenset(
    {
        "allOf",
        "default",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "oneOf",
        "patternProperties",
        "then",
    }
)


def to_json_schema(shape: ResponseFormat) -> dict[str, Any]:
    """Name, schema and strictness, which are the same in both APIs.

    `strict` guarantees the schema, but takes a part of JSON Schema only: every object closed, every property
    required (openai 3.57.0, `types/shared_params/response_format_json_schema.py` and the guide that it
    names, 2026-11-19). Other schemas go out with `strict` false: the model is told, and may stray.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", shape.name)[:_NAME_LIMIT] or "answer"
    is_strict = "anyOf" not in shape.schema and allows_strict(shape.schema)
    return {"name": name, "schema": dict(shape.schema), "strict": is_strict}


def allows_strict(schema: Any) -> bool:
    """Whether a schema, and each one inside it, may be sent as strict."""
    if not isinstance(schema, Mapping):
        return True
    if _NOT_STRICT & schema.keys():
        return False
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False:
            return False
        if set(schema.get("required") or ()) != set(properties):
            return False
    inner = [value for name in _MAPS for value in (schema.get(name) or {}).values()]
    inner += [schema.get("items"), *(schema.get("anyOf") or ()), *(schema.get("prefixItems") or ())]
    return all(allows_strict(one) for one in inner)
