"""Bodies of the skills API: the fields of an upload form, and the JSON of an update."""

from collections.abc import Mapping

from antiphon.errors import invalid_value
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.types.skills import UpdateSkill

_update_decoder = RequestDecoder(UpdateSkill)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def decode_skill_update(body: bytes, limits: Limits) -> tuple[UpdateSkill, list[str]]:
    return _update_decoder.convert(decode_object(body, limits), len(body), limits)


def decode_version_fields(fields: Mapping[str, str]) -> tuple[bool, list[str]]:
    """Return whether the new version becomes the default one, and the names of unknown fields."""
    if (value := fields.get("default", "false").lower()) not in _FLAGS:
        raise invalid_value("default", "it is true or false")
    return _FLAGS[value], [name for name in fields if name != "default"]
