"""vLLM's OpenAI server."""

from antiphon.engines.http.base import HttpEngine


class Vllm(HttpEngine):
    name = "vllm"
    port = 8000
    version_path = "/version"
    counting_path = "/tokenize"
