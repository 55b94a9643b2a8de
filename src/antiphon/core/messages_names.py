"""The names of Anthropic's API."""

from typing import ClassVar

from antiphon.core.names import Names


class MessageNames(Names):
    fields: ClassVar = {
        "input": "messages",
        "instructions": "system",
        "max_output_tokens": "max_tokens",
        "stop": "stop_sequences",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "user": "metadata.user_id",
    }
    endings: ClassVar = {
        ".image_url": ".source",
        ".file_data": ".source",
        ".file_url": ".source",
        ".file_id": ".source.file_id",
        ".call_id": ".tool_use_id",
        ".encrypted_content": ".signature",
    }
    words: ClassVar = {
        r"\binput_image( part)?": "image block",
        r"\binput_file( part)?": "document block",
        r"\bas (image_url|file_data)\b": "as base64",
        r"\bcall_id\b": "id",
        r" Shorten the input, or send truncation: 'auto'\.": "",
    }

    def tool(self, index: int, ending: str) -> str:
        if ending == "parameters" or ending.startswith(("parameters.", "parameters[")):
            ending = f"input_schema{ending.removeprefix('parameters')}"
        return f"tools[{index}].{ending}"
