"""Answers of a shape that was asked for."""

from __future__ import annotations

import kvsdk
import pytest
from anthropic_wire import message, text
from asking import ask
from kvsdk import Client
from loopback import Loopback
from pydantic import BaseModel


class Valve(BaseModel):
    """A valve."""

    colour: str
    number: int


SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


def test_a_pydantic_model_is_sent_as_its_schema_and_read_back(client: Client, loopback: Loopback) -> None:
    """The schema goes into `output_config`, and `reply.parsed` is an instance of the model."""
    loopback.script(message(text('{"colour": "blue", "number": 3}')))
    reply = ask(client, "Which valve?", streams=False, response_format=Valve)
    assert loopback.body["output_config"] == {
        "format": {"type": "json_schema", "schema": Valve.model_json_schema()}
    }
    assert reply.parsed == Valve(colour="blue", number=3)


def test_a_json_schema_gives_decoded_json(client: Client, loopback: Loopback) -> None:
    """With a plain schema `reply.parsed` is the decoded answer, and without any it is None."""
    loopback.script(message(text('{"colour": "red"}')), message())
    assert client.generate("Which valve?", response_format=SCHEMA).parsed == {"colour": "red"}
    assert client.generate("Which valve?").parsed is None


@pytest.mark.parametrize("answer", ['{"colour": "blue"', '{"colour": "blue", "number": "many"}'])
def test_an_answer_of_another_shape_loses_nothing(answer: str, client: Client, loopback: Loopback) -> None:
    """`parsed` raises with the reason and the answer's start; the reply and its cost are there."""
    loopback.script(message(text(answer)))
    reply = client.generate("Which valve?", response_format=Valve)
    assert reply.text == answer
    assert reply.cost.total
    with pytest.raises(kvsdk.InvalidAnswer, match="the answer is no Valve"):
        _ = reply.parsed


@pytest.mark.parametrize("wrong", ["json", {"type": "array"}, int, 5])
def test_what_is_no_format_is_refused(wrong: object, client: Client, loopback: Loopback) -> None:
    """Only a pydantic model or the schema of an object is a format; nothing is sent."""
    with pytest.raises(kvsdk.InvalidRequest) as caught:
        client.generate("Which valve?", response_format=wrong)  # type: ignore[arg-type]
    assert caught.value.field == "response_format"
    assert loopback.bodies == []
