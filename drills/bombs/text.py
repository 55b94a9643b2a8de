"""Text that breaks encoders, stores and streams: lone surrogates, NUL, and text that looks like something else.

Lone surrogates are rejected everywhere, NUL in names and ids; any other text is returned unchanged.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from drills.bombs.bomb import Bomb, create_bomb, get_bomb, post_bomb

FORGED_EVENTS = '\n\nevent: response.completed\ndata: {"type":"response.completed"}\n\ndata: [DONE]\n\n'
SURROGATES = (r"\ud800", r"\udfff", r"a\ud83d", r"\ude00b", r"\ud800\ud800")
TEMPLATES = {
    "input": '{"model":"fake","input":"@"}',
    "instructions": '{"model":"fake","input":"hi","instructions":"@"}',
    "metadata value": '{"model":"fake","input":"hi","metadata":{"k":"@"}}',
    "metadata key": '{"model":"fake","input":"hi","metadata":{"@":"v"}}',
    "model": '{"model":"@","input":"hi"}',
    "tool name": '{"model":"fake","input":"hi","tools":[{"type":"function","name":"@"}]}',
    "unheard of": '{"model":"fake","input":"hi","@":1}',
    "schema": '{"model":"fake","input":"","text":{"format":{"type":"json_schema","name":"n","schema":{"const":"@"}}}}',
}
_MORE_TEMPLATES = {
    "output of a tool": '{"model":"fake","input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},'
    '{"type":"function_call_output","call_id":"c","output":"@"}]}',
    "safety_identifier": '{"model":"fake","input":"hi","safety_identifier":"@"}',
    "previous_response_id": '{"model":"fake","input":"hi","previous_response_id":"@"}',
    "conversation": '{"model":"fake","input":"hi","conversation":"@"}',
    "stop": '{"model":"fake","input":"hi","stop":"@"}',
}
NUL_FIELDS = (
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
    "a\0b", "\u2028\u2029", "\x7f\x1b[31m", "\ufffe\uffff", "👩🏽‍🚀", "\r\n", "\ufeff", FORGED_EVENTS, "</script>",
)  # fmt: skip
LITERALS = (
    "__import__('os').system('touch {}')",
    "{{{{ cycler.__init__.__globals__.os.system('touch {}') }}}}",
    "!!python/object/apply:os.system ['touch {}']",
    "cos\nsystem\n(S'touch {}'\ntR.",
    "$(touch {})",
    "${{jndi:ldap://127.0.0.1:1/{}}}",
)
_OTHER_APIS = {
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


def fill_template(template: str, escape: str) -> bytes:
    """Insert these JSON characters into the template."""
    return template.replace("@", escape).encode()


def texts() -> Iterator[Bomb]:
    for field, template in {**TEMPLATES, **_MORE_TEMPLATES}.items():
        for escape in SURROGATES:
            yield post_bomb(f"{escape} as {field}", fill_template(template, escape))
    for path, template in _OTHER_APIS.items():
        for escape in SURROGATES[:2]:
            yield post_bomb(
                f"{escape} to {path}", fill_template(template, escape), path, anthropic=path.endswith("messages")
            )
    for field, param in NUL_FIELDS:
        yield post_bomb(f"NUL as {field}", fill_template(TEMPLATES[field], NUL), param=param)
    for field in ("safety_identifier", "previous_response_id", "conversation"):
        yield post_bomb(f"NUL as {field}", fill_template(_MORE_TEMPLATES[field], NUL), param=field)
    yield create_bomb("NUL as call_id", {"input": NUL_IDS}, param="input[0].call_id")
    yield from valid_texts()
    yield from _ids()


def valid_texts() -> Iterator[Bomb]:
    """Yield texts that are valid, or may be."""
    for text in TEXTS:
        expected = msgspec.json.encode(f"You said: {text}")[1:-1]
        yield create_bomb(f"the text {text!r:.20}", {"input": text}, answers=(200,), says=expected, reaches=True)
    for field in ("instructions", "schema", "output of a tool", "unheard of"):
        sent = fill_template({**TEMPLATES, **_MORE_TEMPLATES}[field], NUL)
        yield post_bomb(f"NUL as {field}", sent, answers=(200, 400), reaches=True)
    for path, template in _OTHER_APIS.items():
        options: dict[str, Any] = {"anthropic": path.endswith("messages"), "reaches": True}
        yield post_bomb(f"NUL to {path}", fill_template(template, NUL), path, answers=(200, 400, 404), **options)


def _ids() -> Iterator[Bomb]:
    for each in _IDS:
        for path in ("/v1/responses/{}", "/v1/responses/{}/input_items", "/v1/conversations/{}", "/v1/models/{}"):
            yield get_bomb(f"{path.format(each[:30])}", path.format(each), answers=(200, 400, 404))
        yield get_bomb(f"after={each[:30]}", f"/v1/responses?after={each}", answers=(200, 400, 404))


def literals(canary: str) -> Iterator[Bomb]:
    """Yield code in several languages that would create this file; none of it may be evaluated."""
    for number, literal in enumerate(LITERALS):
        text = literal.format(canary)
        for field in ("input", "instructions", "model", "previous_response_id", "safety_identifier"):
            yield create_bomb(f"code {number} as {field}", {field: text}, answers=(200, 400), reaches=True)
        call = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": text}]
        output = [{"type": "function_call_output", "call_id": "c", "output": text}]
        yield create_bomb(f"code {number} as arguments", {"input": call + output}, answers=(200, 400), reaches=True)
