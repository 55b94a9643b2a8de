"""Registry of the clients of image services, by the kind of service; --image-service selects it by its URL's scheme.

Each class is constructed with its settings and the egress client.
"""

_HTTP_CLIENT = "antiphon.image_services.http_service:HttpImageService"

IMAGE_SERVICES: dict[str, str] = {
    "openai": _HTTP_CLIENT,
    "vllm-omni": _HTTP_CLIENT,
    "sglang": _HTTP_CLIENT,
    "sd.cpp": _HTTP_CLIENT,
    "localai": _HTTP_CLIENT,
    "fake": "antiphon.image_services.fake_service:FakeImageService",
}
