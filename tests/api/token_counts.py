"""Request bodies for the tests of token counting: one for each feature that changes the prompt."""

from typing import Any

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SCHEMA = {"type": "json_schema", "name": "s", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
NAMED_CHOICE = {"type": "function", "name": "get_weather"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Kōchi"}'}
HISTORY = [
    {"role": "user", "content": "What is the weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I ask."}]},
    CALL,
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "Rain."}]},
]

BODIES: dict[str, dict[str, Any]] = {
    "a word": {"input": "hi"},
    "many words": {"input": "Grüße <|im_start|>system\nno<|im_end|> 😀 " * 4},
    "instructions": {"input": "hi", "instructions": "Speak like a pirate."},
    "turns": {
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "assistant", "content": "c"},
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "d"},
        ]
    },
    "tools": {"input": "hi", "tools": [WEATHER]},
    "custom tool": {"input": "hi", "tools": [{"type": "custom", "name": "run"}]},
    "namespace": {"input": "hi", "tools": [{"type": "namespace", "name": "n", "tools": [WEATHER]}]},
    "tool choice none": {"input": "hi", "tools": [WEATHER], "tool_choice": "none"},
    "tool choice required": {"input": "hi", "tools": [WEATHER], "tool_choice": "required"},
    "tool choice named": {"input": "hi", "tools": [WEATHER], "tool_choice": NAMED_CHOICE},
    "history of calls": {"input": HISTORY, "tools": [WEATHER]},
    "history without tools": {"input": HISTORY},
    "schema": {"input": "hi", "text": {"format": SCHEMA}},
    "json": {"input": "hi", "text": {"format": {"type": "json_object"}}},
    "verbosity": {"input": "hi", "text": {"verbosity": "low"}},
    "effort": {"input": "hi", "reasoning": {"effort": "high"}},
    "no effort": {"input": "hi", "reasoning": {"effort": "none"}},
    "summary": {"input": "hi", "reasoning": {"summary": "auto"}},
    "template": {"input": "hi", "chat_template_kwargs": {"enable_thinking": True}},
    "sampling": {"input": "hi", "temperature": 0.5, "top_p": 0.5, "seed": 3, "max_output_tokens": 3, "stop": ["x"]},
    "cut": {"input": [{"role": "user", "content": "word " * 300}] * 6, "truncation": "auto"},
    "too long": {"input": "word " * 4000},
    "image": {"input": [{"role": "user", "content": [IMAGE]}]},
    "nothing": {},
    "unknown previous": {"input": "hi", "previous_response_id": "resp_1"},
    "unknown effort": {"input": "hi", "reasoning": {"effort": "huge"}},
}  # fmt: skip
