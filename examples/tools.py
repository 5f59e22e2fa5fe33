"""A conversation with a tool: the model asks for it, we call it, the model answers.

python examples/tools.py anthropic:claude-sonnet-5-5
"""

import sys

import kvsdk
from kvsdk import Message, Tool


def valve_state(number: int) -> str:
    """Whether valve `number` of the station is open or closed."""
    return "closed" if number % 2 else "open"


def main(address: str) -> None:
    tool = Tool.from_function(valve_state, cache=True)
    messages = [Message.user("Is valve 3 open?")]
    with kvsdk.Client(address) as client:
        chat = client.session("operator-7")
        choice = "valve_state"  # the first answer must be a call; after it the model is free
        while True:
            reply = chat.generate(messages, tools=[tool], tool_choice=choice, max_tokens=100)
            messages.append(reply.message)
            if not reply.tool_calls:
                print(reply.text)
                return
            for call in reply.tool_calls:
                result = tool(**call.arguments)
                print(f"{call.name}({call.arguments_json}) -> {result}")
                messages.append(Message.tool(call.id, result))
            choice = "auto"


if __name__ == "__main__":
    main(sys.argv[1])
