"""Bodies of the containers API."""

from antiphon.errors import invalid_value
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.types.containers import AddContainerFile, CreateContainer

_create_decoder = RequestDecoder(CreateContainer)
_file_decoder = RequestDecoder(AddContainerFile)


def decode_container(body: bytes, limits: Limits) -> tuple[CreateContainer, list[str]]:
    request, ignored = _create_decoder.convert(decode_object(body, limits), len(body), limits)
    if not 0 < len(request.name) <= limits.id_length or "\0" in request.name:  # PostgreSQL rejects NUL in text
        raise invalid_value("name", f"it has 1 to {limits.id_length} characters, without NUL")
    return request, ignored


def decode_container_file(body: bytes, limits: Limits) -> tuple[AddContainerFile, list[str]]:
    return _file_decoder.convert(decode_object(body, limits), len(body), limits)
