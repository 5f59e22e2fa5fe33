"""Tools that a model may call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from kvsdk.errors import InvalidRequest
from kvsdk.prompt.parts import Breakpoint, CacheMark


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its name, what it does, and a JSON schema of its arguments.

    Attributes:
        name: What the model calls it.
        description: What it does and when to use it.
        schema: A JSON schema of type object, or a pydantic model class. Key order is sent as given.
        cache: A breakpoint after this tool's definition.
        function: The Python function behind it, if it was made by `from_function`.
    """

    name: str
    description: str
    schema: Mapping[str, Any] | type
    cache: CacheMark = None
    function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidRequest("a tool needs a name", field="tools")
        if isinstance(self.schema, type):
            model_schema = getattr(self.schema, "model_json_schema", None)
            if model_schema is None:
                raise InvalidRequest(
                    f"the schema of tool {self.name!r} is a JSON schema or a pydantic model, "
                    f"not {self.schema.__name__}",
                    field="tools",
                )
            object.__setattr__(self, "schema", model_schema())
        elif not isinstance(self.schema, Mapping):
            raise InvalidRequest(f"the schema of tool {self.name!r} must be a JSON object", field="tools")
        object.__setattr__(self, "cache", Breakpoint.of(self.cache))

    @property
    def json_schema(self) -> dict[str, Any]:
        """The schema of the arguments, as a JSON object."""
        return cast("dict[str, Any]", self.schema)

    @classmethod
    def from_function(cls, function: Callable[..., Any], *, cache: CacheMark = None) -> Tool:
        """From a typed function: its name, docstring and annotations.

        Raises:
            InvalidRequest: A parameter has no annotation, or is positional-only or variadic.
        """
        from pydantic import BaseModel, ConfigDict, create_model

        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise InvalidRequest(f"{function.__name__}: parameter {name!r} cannot be sent by name")
            if name not in hints:
                raise InvalidRequest(f"{function.__name__}: parameter {name!r} needs a type annotation")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints[name], default)
        config = ConfigDict(extra="forbid")
        model: type[BaseModel] = create_model(function.__name__, __config__=config, **fields)
        schema = model.model_json_schema()
        return cls(function.__name__, inspect.getdoc(function) or "", schema, cache, function)

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """Call the Python function behind the tool."""
        if self.function is None:
            raise InvalidRequest(f"tool {self.name!r} has no function; make it with Tool.from_function")
        return self.function(*args, **arguments)
