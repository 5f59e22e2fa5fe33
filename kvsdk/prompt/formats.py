"""The shape that an answer's text must have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsdk._text import excerpt
from kvsdk.errors import InvalidAnswer, InvalidRequest


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """A JSON schema for the answer.

    Attributes:
        name: What the vendor calls it.
        schema: The JSON schema.
        model: The pydantic model it was made of, if it was.
    """

    name: str
    schema: Mapping[str, Any]
    model: type | None = None

    @classmethod
    def of(cls, value: object) -> ResponseFormat | None:
        """From what a caller writes as `response_format=`: a pydantic model, a JSON schema, or None.

        Raises:
            InvalidRequest: Something else.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, type) and hasattr(value, "model_json_schema"):
            return cls(value.__name__, value.model_json_schema(), value)
        if isinstance(value, Mapping) and value.get("type") == "object":
            return cls(str(value.get("title") or "answer"), value)
        raise InvalidRequest(
            "response_format is a pydantic model or a JSON schema of type object, not "
            f"{value if isinstance(value, Mapping) else type(value).__name__}",
            field="response_format",
        )

    def parse(self, text: str) -> Any:
        """The answer as the model's instance, or as decoded JSON without one.

        Raises:
            InvalidAnswer: The text is not of this shape; nothing of the reply is lost.
        """
        try:
            if self.model is not None:
                return self.model.model_validate_json(text)  # type: ignore[attr-defined]  # a pydantic model
            return json.loads(text)
        except ValueError as error:
            lines = str(error).splitlines()  # of pydantic: a count, then each field and what is wrong with it
            reason = " ".join(line.strip() for line in (lines[1:3] if len(lines) > 2 else lines[:1]))
            raise InvalidAnswer(
                f"the answer is no {self.name}: {reason}; it starts with: {excerpt(text)}"
            ) from error
