"""Bodies of the containers API."""

from antiphon.errors import invalid_value
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.types.containers import AddContainerFile, CreateContainer

_create_decoder = RequestDecoder(CreateContainer)
decode_container_file = RequestDecoder(AddContainerFile).decode_body


def decode_container(body: bytes, limits: Limits) -> tuple[CreateContainer, list[str]]:
    request, ignored = _create_decoder.decode_body(body, limits)
    if not 0 < len(request.name) <= limits.id_length or "\0" in request.name:  # PostgreSQL rejects NUL in text
        raise invalid_value("name", f"it has 1 to {limits.id_length} characters, without NUL")
    return request, ignored
