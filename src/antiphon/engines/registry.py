"""The engines there are. A line here makes an engine selectable and puts it under the contract suite.

An engine that runs elsewhere is selected by a URL, of which its name here is the scheme: vllm://host:8000.
"""

ENGINES: dict[str, str] = {
    "fake": "antiphon.engines.fake.engine:FakeEngine",
    "llamacpp": "antiphon.engines.llamacpp.engine:LlamaCpp",
    "llamacpp-server": "antiphon.engines.http.llamacpp_server:LlamaCppServer",
    "ollama": "antiphon.engines.http.ollama:Ollama",
    "openai": "antiphon.engines.http.openai:OpenAI",
    "ovms": "antiphon.engines.http.ovms:Ovms",
    "sglang": "antiphon.engines.http.sglang:Sglang",
    "vllm": "antiphon.engines.http.vllm:Vllm",
}
