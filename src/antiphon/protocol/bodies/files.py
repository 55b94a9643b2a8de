"""Bodies of the files API: the fields of an upload form, and the JSON of uploads in parts."""

from collections.abc import Mapping
from typing import Any

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.bodies.forms import convert_fields
from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.types.files import CompleteUpload, CreateUpload, ExpiresAfter, FileFields

_upload_decoder = RequestDecoder(CreateUpload)
decode_completion = RequestDecoder(CompleteUpload).decode_body


def decode_file_fields(fields: Mapping[str, str]) -> tuple[FileFields, list[str]]:
    """Decode the fields of a form. SDKs write `expires_after` as `expires_after[anchor]` and `expires_after[seconds]`.

    Also returns the names of unknown fields.
    """
    values: dict[str, Any] = {}
    for name, value in fields.items():
        base, _, key = name.removesuffix("]").partition("[")
        if key:
            values.setdefault(base, {})[key] = value
        else:
            values[name] = value
    request, ignored = convert_fields(values, FileFields)
    unknown = values.get("expires_after", {}).keys() - {*ExpiresAfter.__struct_fields__}
    return request, [*ignored, *[f"expires_after.{name}" for name in sorted(unknown)]]


def decode_upload(body: bytes, limits: Limits) -> tuple[CreateUpload, list[str]]:
    request, ignored = _upload_decoder.decode_body(body, limits)
    check_filename(request.filename, limits, "filename")
    if request.bytes > limits.stored_file_bytes:
        raise InvalidValue(f"A file has at most {limits.stored_file_bytes:,} bytes.", param="bytes")
    return request, [*ignored, "mime_type"]  # the name of a file tells its type


def check_filename(filename: str, limits: Limits, param: str) -> None:
    """Check the name of a file, which is stored and sent back, and never a path on the server."""
    if not 0 < len(filename) <= limits.id_length or "\0" in filename:  # PostgreSQL rejects NUL in text
        raise InvalidValue(f"The name of a file has 1 to {limits.id_length} characters without NUL.", param=param)
