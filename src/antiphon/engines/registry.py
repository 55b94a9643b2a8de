"""The engines there are. A line here makes an engine selectable and puts it under the contract suite.

An engine that runs elsewhere is selected by a URL, of which its name here is the scheme: vllm://host:8000.
"""

ENGINES: dict[str, str] = {
    "fake": "antiphon.engines.fake.engine:FakeEngine",
    "llamacpp": "antiphon.engines.llamacpp.engine:LlamaCpp",
    "llamacpp-server": "antiphon.engines.http.adapters.llamacpp_server:LlamaCppServer",
    "ollama": "antiphon.engines.http.adapters.ollama:Ollama",
    "openai": "antiphon.engines.http.adapters.openai:OpenAI",
    "ovms": "antiphon.engines.http.adapters.ovms:Ovms",
    "sglang": "antiphon.engines.http.adapters.sglang:Sglang",
    "vllm": "antiphon.engines.http.adapters.vllm:Vllm",
}
