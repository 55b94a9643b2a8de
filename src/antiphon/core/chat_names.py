"""The names of chat completions."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from antiphon.core.names import Names, Place


class ChatNames(Names):
    """`tools`: where each stood, as `tools[0].function`."""

    fields: ClassVar = {
        "input": "messages",
        "text.verbosity": "verbosity",
        "reasoning.effort": "reasoning_effort",
        "include": "logprobs",
        "tool_choice.tools": "tool_choice.allowed_tools.tools",
        "max_output_tokens": "max_completion_tokens",
        "text.format": "response_format",
    }
    endings: ClassVar = {".image_url": "", ".call_id": ".tool_call_id"}
    words: ClassVar = {r"\binput_image\b": "image_url", r"\binput_file\b": "file", r"\bcall_id\b": "tool_call_id"}

    def __init__(
        self, places: Sequence[Place] = (), given: Mapping[str, str] | None = None, tools: Sequence[str] = ()
    ) -> None:
        super().__init__(places, given)
        self._tools = tools

    def tool(self, index: int, ending: str) -> str:
        if index >= len(self._tools):
            return f"tools[{index}].{ending}"
        return f"{self._tools[index]}.{ending.replace('format.definition', 'format.grammar.definition')}"
