"""Bodies of the skills API: the fields of an upload form, and the JSON of an update."""

from collections.abc import Mapping

from antiphon.errors import invalid_value
from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.types.skills import UpdateSkill

decode_skill_update = RequestDecoder(UpdateSkill).decode_body
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def decode_version_fields(fields: Mapping[str, str]) -> tuple[bool, list[str]]:
    """Return whether the new version becomes the default one, and the names of unknown fields."""
    if (value := fields.get("default", "false").lower()) not in _FLAGS:
        raise invalid_value("default", "it is true or false")
    return _FLAGS[value], [name for name in fields if name != "default"]
