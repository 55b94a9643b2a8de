"""An engine without a model that repeats the last message, and a format of tool calls.

    pip install antiphon-echo
    antiphon serve --engine echo
    antiphon serve --engine vllm://gpu-1:8000 --tool-call-parser echo

A token of the engine is a character.
"""

from collections.abc import AsyncGenerator, Sequence

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Chunk, GenerationRequest, JsonObject, JsonSchema, Prompt, TokenCounts
from antiphon.engines.base import Capabilities, Engine, Model
from antiphon.engines.fake.schema_instance import smallest_instance
from antiphon.parsers.calls.base import JsonFrame

ECHO_CALLS = JsonFrame(openings=("[CALL]",), closings=("[/CALL]",))


class EchoSettings(Struct, frozen=True):
    """Fields are filled from the configuration by name; this engine has none."""


class EchoEngine(Engine):
    name = "echo"

    def __init__(self, settings: EchoSettings) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def models(self) -> Sequence[Model]:
        return [Model(id="echo", created=0)]

    def serves(self, model: str) -> bool:
        return model == "echo"

    def is_healthy(self) -> bool:
        return True

    async def capabilities(self, model: str) -> Capabilities:
        fields = frozenset({"max_output_tokens", "temperature", "text.format"})
        return Capabilities(level="chat", supported_fields=fields)

    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return len(_read_last_message(prompt))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        message = _read_last_message(request.prompt)
        match request.constraint:
            case JsonSchema(schema=schema):
                text = smallest_instance(schema)
            case JsonObject():
                text = "{}"
            case _:
                text = message
        output = text[: request.sampling.max_tokens]
        for character in output:
            yield [Chunk(text=character)]
        counts = TokenCounts(input_tokens=len(message), output_tokens=len(output))
        yield [Chunk(finish="stop" if output == text else "length", counts=counts)]


def _read_last_message(prompt: Prompt) -> str:
    assert isinstance(prompt, ChatPrompt)
    return str(prompt.messages[-1]["content"])
