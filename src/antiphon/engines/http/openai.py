"""OpenAI, and any server that speaks its chat completions."""

from antiphon.engines.http.base import HttpEngine


class OpenAI(HttpEngine):
    """The path of its URL is that of the whole API, as in the `base_url` of OpenAI's own client."""

    name = "openai"
    port = 80
    api = ""

    def _prefix(self, path: str) -> str:
        return path or "/v1"
