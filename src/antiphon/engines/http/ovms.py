"""OpenVINO Model Server, whose OpenAI endpoints are below /v3 and whose own version KServe's protocol tells."""

from antiphon.engines.http.base import HttpEngine


class Ovms(HttpEngine):
    name = "ovms"
    port = 8000
    api = "/v3"
    version_path = "/v2"
    includes_stop = True
