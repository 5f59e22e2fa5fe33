"""The same lines against a hosted vendor and against a local engine.

python examples/ask.py anthropic:claude-sonnet-5-5        # needs ANTHROPIC_API_KEY
python examples/ask.py openai:gpt-6.1-terra               # needs OPENAI_API_KEY
python examples/ask.py vllm:/path/to/a/checkpoint
"""

import sys

import kvsdk
from kvsdk import Text

MANUAL = "Open the blue suction valve first, then the red delivery valve. " * 40


def main(address: str) -> None:
    with kvsdk.Client(address) as client:
        chat = client.session("user-42", tenant="acme")
        for question in ("Which valve comes first?", "And which comes after it?"):
            reply = chat.generate(question, system=[Text(MANUAL, cache="1h")], max_tokens=30)
            usage = reply.usage
            print(reply.text)
            print(f"  {usage.cache_read_tokens} of {usage.input_tokens} tokens read, cost {reply.cost.total}")


if __name__ == "__main__":
    main(sys.argv[1])
