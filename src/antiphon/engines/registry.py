"""Registry of engines. A line here makes an engine selectable and runs the contract tests over it.

A remote engine is selected by a URL whose scheme is its name here: vllm://host:8000.
"""

ENGINES: dict[str, str] = {
    "fake": "antiphon.engines.fake.engine:FakeEngine",
    "llamacpp": "antiphon.engines.llamacpp.engine:LlamaCpp",
    "openvino": "antiphon.engines.openvino.engine:OpenVino",
    "vllm": "antiphon.engines.http.adapters.vllm:Vllm",
    "sglang": "antiphon.engines.http.adapters.sglang:Sglang",
    "ovms": "antiphon.engines.http.adapters.ovms:Ovms",
    "llamacpp-server": "antiphon.engines.http.adapters.llamacpp_server:LlamaCppServer",
    "ollama": "antiphon.engines.http.adapters.ollama:Ollama",
    "openai": "antiphon.engines.http.adapters.openai:OpenAI",
}
