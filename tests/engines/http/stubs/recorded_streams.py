# ruff: noqa: E501 - recorded lines are not wrapped
"""Streams as the servers send them, from their documentation and source, each with the expected result."""

from typing import Any

from msgspec import Struct

from antiphon.core.prompt import TokenCounts
from antiphon.engines.http.adapters.llamacpp_server import LlamaCppServer
from antiphon.engines.http.adapters.ollama import Ollama
from antiphon.engines.http.adapters.openai import OpenAI
from antiphon.engines.http.adapters.ovms import Ovms
from antiphon.engines.http.adapters.sglang import Sglang
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.base import HttpEngine


class RecordedStream(Struct, frozen=True, kw_only=True):
    kind: type[HttpEngine]
    body: bytes
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: dict[int, tuple[str, str]] = {}
    finish: str = "stop"
    counts: TokenCounts = TokenCounts()
    request_fields: dict[str, Any] = {}


VLLM = RecordedStream(
    kind=Vllm,
    text="Hello you",
    reasoning="Well.",
    counts=TokenCounts(input_tokens=9, cached_tokens=4, output_tokens=6),
    body=b"""\
data: {"id":"chatcmpl-a","object":"chat.completion.chunk","created":1763190000,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}

data: {"id":"chatcmpl-a","object":"chat.completion.chunk","created":1763190000,"model":"m","choices":[{"index":0,"delta":{"reasoning":"Well"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a","object":"chat.completion.chunk","created":1763190000,"model":"m","choices":[{"index":0,"delta":{"reasoning":"."},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a","object":"chat.completion.chunk","created":1763190000,"model":"m","choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a","object":"chat.completion.chunk","created":1763190000,"model":"m","choices":[{"index":0,"delta":{"content":" you"},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a","object":"chat.completion.chunk","created":1763190000,"model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":15,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":4}}}

data: [DONE]

""",
)
VLLM_CALLS = RecordedStream(
    kind=Vllm,
    calls={0: ("get_weather", '{"city": "Paris"}'), 1: ("get_weather", '{"city": "Rome"}')},
    finish="tool_calls",
    counts=TokenCounts(input_tokens=150, output_tokens=33),
    body=b"""\
data: {"id":"chatcmpl-b","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}

data: {"id":"chatcmpl-b","choices":[{"index":0,"delta":{"tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"get_weather"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-b","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"city\\": "}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-b","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\"Paris\\"}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-b","choices":[{"index":0,"delta":{"tool_calls":[{"id":"chatcmpl-tool-2","type":"function","index":1,"function":{"name":"get_weather","arguments":""}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-b","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\\"city\\": \\"Rome\\"}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-b","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null}]}

data: {"id":"chatcmpl-b","choices":[],"usage":{"prompt_tokens":150,"total_tokens":183,"completion_tokens":33}}

data: [DONE]

""",
)
SGLANG = RecordedStream(
    kind=Sglang,
    text="42",
    reasoning="Sum it up",
    finish="length",
    counts=TokenCounts(input_tokens=20, cached_tokens=16, output_tokens=8, reasoning_tokens=6),
    body=b"""\
data: {"id":"f00","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"f00","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":"Sum it","tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"f00","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":" up","tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"f00","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":"42","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"f00","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}

data: {"id":"f00","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":20,"total_tokens":28,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":16},"reasoning_tokens":6}}

data: [DONE]

""",
)
OVMS = RecordedStream(
    kind=Ovms,
    text="One, two",
    counts=TokenCounts(input_tokens=12, output_tokens=5),
    request_fields={"stop": ("END",)},
    body=b"""\
data: {"choices":[{"finish_reason":null,"index":0,"logprobs":null,"delta":{"content":"One, ","role":"assistant"}}],"created":1,"model":"m","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"logprobs":null,"delta":{"content":"twoE"}}],"created":1,"model":"m","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":"stop","index":0,"logprobs":null,"delta":{"content":"ND"}}],"created":1,"model":"m","object":"chat.completion.chunk"}

data: {"choices":[],"created":1,"model":"m","object":"chat.completion.chunk","usage":{"completion_tokens":5,"prompt_tokens":12,"total_tokens":17}}

data: [DONE]

""",
)
LLAMACPP = RecordedStream(
    kind=LlamaCppServer,
    text="Hi!",
    counts=TokenCounts(input_tokens=14, cached_tokens=13, output_tokens=3),
    body=b"""\
data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"chatcmpl-x","model":"m","object":"chat.completion.chunk","prompt_progress":{"total":14,"cache":13,"processed":14,"time_ms":3}}

: ping

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}],"created":1,"id":"chatcmpl-x","model":"m","system_fingerprint":"b9000-abc","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"!"}}],"created":1,"id":"chatcmpl-x","model":"m","system_fingerprint":"b9000-abc","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":1,"id":"chatcmpl-x","model":"m","system_fingerprint":"b9000-abc","object":"chat.completion.chunk"}

data: {"choices":[],"created":1,"id":"chatcmpl-x","model":"m","object":"chat.completion.chunk","usage":{"completion_tokens":3,"prompt_tokens":14,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":13}},"timings":{"cache_n":13,"prompt_n":1}}

data: [DONE]

""",
)
OLLAMA = RecordedStream(
    kind=Ollama,
    reasoning="Tools, then.",
    calls={0: ("a", '{"x":1}'), 1: ("b", "{}")},
    finish="tool_calls",
    counts=TokenCounts(input_tokens=31, output_tokens=12),
    body=b"""\
data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"Tools, then."},"finish_reason":null}]}

data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call_1","index":0,"type":"function","function":{"name":"a","arguments":"{\\"x\\":1}"}},{"id":"call_2","index":1,"type":"function","function":{"name":"b","arguments":"{}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"tool_calls"}]}

data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"fp_ollama","choices":[],"usage":{"prompt_tokens":31,"completion_tokens":12,"total_tokens":43}}

data: [DONE]

""",
)
OPENAI = RecordedStream(
    kind=OpenAI,
    refusal="I cannot do that.",
    counts=TokenCounts(input_tokens=5, output_tokens=7, reasoning_tokens=2),
    body=b"""\
data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"role":"assistant","content":null,"refusal":""},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"x"}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"refusal":"I cannot do"},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"refusal":" that."},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":2,"audio_tokens":0}}}

data: [DONE]

""",
)

RECORDED_STREAMS = {
    "vllm": VLLM,
    "vllm calls": VLLM_CALLS,
    "sglang": SGLANG,
    "ovms": OVMS,
    "llamacpp-server": LLAMACPP,
    "ollama": OLLAMA,
    "openai": OPENAI,
}
