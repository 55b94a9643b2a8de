"""Text that breaks encoders, stores and streams: halves of characters, NUL, and text that looks like something else.

Halves are refused wherever they are, NUL where something has a name; any other text comes back as it was.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from drills.bombs.bomb import Bomb, asked, got, posted

FORGED = '\n\nevent: response.completed\ndata: {"type":"response.completed"}\n\ndata: [DONE]\n\n'
SURROGATES = (r"\ud800", r"\udfff", r"a\ud83d", r"\ude00b", r"\ud800\ud800")
PLACES = {
    "input": '{"model":"fake","input":"@"}',
    "instructions": '{"model":"fake","input":"hi","instructions":"@"}',
    "metadata value": '{"model":"fake","input":"hi","metadata":{"k":"@"}}',
    "metadata key": '{"model":"fake","input":"hi","metadata":{"@":"v"}}',
    "model": '{"model":"@","input":"hi"}',
    "tool name": '{"model":"fake","input":"hi","tools":[{"type":"function","name":"@"}]}',
    "unheard of": '{"model":"fake","input":"hi","@":1}',
    "schema": '{"model":"fake","input":"","text":{"format":{"type":"json_schema","name":"n","schema":{"const":"@"}}}}',
}
_MORE_PLACES = {
    "output of a tool": '{"model":"fake","input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},'
    '{"type":"function_call_output","call_id":"c","output":"@"}]}',
    "safety_identifier": '{"model":"fake","input":"hi","safety_identifier":"@"}',
    "previous_response_id": '{"model":"fake","input":"hi","previous_response_id":"@"}',
    "conversation": '{"model":"fake","input":"hi","conversation":"@"}',
    "stop": '{"model":"fake","input":"hi","stop":"@"}',
}
NAMED = (
    ("metadata value", "metadata"),
    ("metadata key", "metadata"),
    ("model", "model"),
    ("tool name", "tools[0].name"),
)
NUL = r"a\u0000b"
NUL_IDS = [
    {"type": "function_call", "call_id": "a\0b", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a\0b", "output": "x"},
]
TEXTS = (
    "a\0b", "\u2028\u2029", "\x7f\x1b[31m", "\ufffe\uffff", "👩🏽‍🚀", "\r\n", "\ufeff", FORGED, "</script>",
)  # fmt: skip
LITERALS = (
    "__import__('os').system('touch {}')",
    "{{{{ cycler.__init__.__globals__.os.system('touch {}') }}}}",
    "!!python/object/apply:os.system ['touch {}']",
    "cos\nsystem\n(S'touch {}'\ntR.",
    "$(touch {})",
    "${{jndi:ldap://127.0.0.1:1/{}}}",
)
_OTHERS = {
    "/v1/chat/completions": '{"model":"fake","messages":[{"role":"user","content":"@"}]}',
    "/v1/completions": '{"model":"fake","prompt":"@"}',
    "/v1/messages": '{"model":"fake","max_tokens":9,"messages":[{"role":"user","content":"@"}]}',
    "/v1/embeddings": '{"model":"fake","input":"@"}',
    "/v1/conversations": '{"items":[{"role":"user","content":"@"}],"metadata":{"k":"v"}}',
    "/v1/responses/input_tokens": '{"model":"fake","input":"@"}',
    "/v1/responses/compact": '{"model":"fake","input":"@"}',
    "/v1/rerank": '{"model":"fake","query":"@","documents":["x"]}',
}
_IDS = ("%00", "resp_%00", "%ED%A0%80", "%ff%fe", "..%2f..%2fetc%2fpasswd", "resp_" + "0" * 5_000, "'%20OR%20'1'='1")


def escaped(template: str, escape: str) -> bytes:
    """With these characters of JSON in its place for a text."""
    return template.replace("@", escape).encode()


def texts() -> Iterator[Bomb]:
    for place, template in {**PLACES, **_MORE_PLACES}.items():
        for escape in SURROGATES:
            yield posted(f"{escape} as {place}", escaped(template, escape))
    for path, template in _OTHERS.items():
        for escape in SURROGATES[:2]:
            yield posted(f"{escape} to {path}", escaped(template, escape), path, anthropic=path.endswith("messages"))
    for place, param in NAMED:
        yield posted(f"NUL as {place}", escaped(PLACES[place], NUL), param=param)
    for place in ("safety_identifier", "previous_response_id", "conversation"):
        yield posted(f"NUL as {place}", escaped(_MORE_PLACES[place], NUL), param=place)
    yield asked("NUL as call_id", {"input": NUL_IDS}, param="input[0].call_id")
    yield from any_texts()
    yield from _ids()


def any_texts() -> Iterator[Bomb]:
    """Nothing is wrong with them."""
    for text in TEXTS:
        told = msgspec.json.encode(f"You said: {text}")[1:-1]
        yield asked(f"the text {text!r:.20}", {"input": text}, answers=(200,), says=told, reaches=True)
    for place in ("instructions", "schema", "output of a tool", "unheard of"):
        sent = escaped({**PLACES, **_MORE_PLACES}[place], NUL)
        yield posted(f"NUL as {place}", sent, answers=(200, 400), reaches=True)
    for path, template in _OTHERS.items():
        about: dict[str, Any] = {"anthropic": path.endswith("messages"), "reaches": True}
        yield posted(f"NUL to {path}", escaped(template, NUL), path, answers=(200, 400, 404), **about)


def _ids() -> Iterator[Bomb]:
    for each in _IDS:
        for path in ("/v1/responses/{}", "/v1/responses/{}/input_items", "/v1/conversations/{}", "/v1/models/{}"):
            yield got(f"{path.format(each[:30])}", path.format(each), answers=(200, 400, 404))
        yield got(f"after={each[:30]}", f"/v1/responses?after={each}", answers=(200, 400, 404))


def literals(canary: str) -> Iterator[Bomb]:
    """Code of some language, which would make this file. Nobody evaluates anything."""
    for number, literal in enumerate(LITERALS):
        text = literal.format(canary)
        for field in ("input", "instructions", "model", "previous_response_id", "safety_identifier"):
            yield asked(f"code {number} as {field}", {field: text}, answers=(200, 400), reaches=True)
        call = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": text}]
        output = [{"type": "function_call_output", "call_id": "c", "output": text}]
        yield asked(f"code {number} as arguments", {"input": call + output}, answers=(200, 400), reaches=True)
