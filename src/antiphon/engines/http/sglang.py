"""SGLang's OpenAI server."""

from antiphon.engines.http.base import HttpEngine


class Sglang(HttpEngine):
    name = "sglang"
    port = 30000
    version_path = "/server_info"
