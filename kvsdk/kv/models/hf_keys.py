"""A Hugging Face configuration, read key by key with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsdk.errors import InvalidRequest
from kvsdk.kv.models.hf_models import DEFAULTS


@dataclass(frozen=True, slots=True, kw_only=True)
class HfKeys:
    """A configuration, or a part of one.

    Attributes:
        values: What it has, and the defaults of its `model_type`.
        where: The part's place, such as `"text_config."`; empty at the top.
    """

    values: Mapping[str, Any]
    where: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "") -> HfKeys:
        """With the defaults of the model's class where a key is missing; null stays null."""
        model_type = values.get("model_type")
        defaults = DEFAULTS.get(model_type, {}) if isinstance(model_type, str) else {}
        return cls(values={**defaults, **values}, where=where)

    @property
    def model_type(self) -> str:
        """The model's type, such as `"llama"`; empty where it is not said."""
        found = self.values.get("model_type")
        return found if isinstance(found, str) else ""

    @property
    def model(self) -> str:
        """The model's type, for an error's text."""
        return self.model_type or "the model"

    def get(self, name: str) -> Any:
        """A value as it stands, or None."""
        return self.values.get(name)

    def optional(self, *names: str) -> int | None:
        """The first of these keys that is there.

        Raises:
            InvalidRequest: It is not a number of at least 1.
        """
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return self._checked(name, value, least=1)
        return None

    def number(self, *names: str, least: int = 1) -> int:
        """The first of these keys that is there.

        Raises:
            InvalidRequest: There is none, or it is not a number of at least `least`.
        """
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return self._checked(name, value, least=least)
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise InvalidRequest(
            f"the config of {self.model} has no {self.where}{names[0]}{others}",
            field=f"{self.where}{names[0]}",
        )

    def items(self, name: str) -> Sequence[Any] | None:
        """A list, or None where it is missing.

        Raises:
            InvalidRequest: It is something else.
        """
        value = self.values.get(name)
        if value is None or isinstance(value, (list, tuple)):
            return value
        raise self.wrong(name, f"it is a list, not {type(value).__name__}")

    def part(self, name: str) -> HfKeys:
        """A nested configuration.

        Raises:
            InvalidRequest: It is no object.
        """
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"it is an object, not {type(value).__name__}")
        return HfKeys.of(value, f"{self.where}{name}.")

    def wrong(self, name: str, what: str) -> InvalidRequest:
        """An error that names the key."""
        return InvalidRequest(f"{self.where}{name}: {what}", field=f"{self.where}{name}")

    def _checked(self, name: str, value: object, *, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(name, f"it is a number of at least {least}, not {value!r}")
        return value
