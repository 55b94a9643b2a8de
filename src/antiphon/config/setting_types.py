"""Value types of settings, their help texts, and the headings under which the help and the docs list them."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

_PAIR = r"^[^=]+=[^=]"
_LABELLED = r"^[^=]+=https?://"
_HOST = r"^(\*|[A-Za-z0-9._:\[\]-]+)\Z"
_ORIGIN = r"^(null|[A-Za-z][A-Za-z0-9+.-]*://[^\s/]+/?)\Z"

# Description of the expected text by pattern; texts with another pattern must be valid in a header.
EXPECTED_TEXTS = {_PAIR: "NAME=MODEL", _LABELLED: "LABEL=URL", _HOST: "a host name", _ORIGIN: "SCHEME://HOST:PORT"}

Name = Annotated[str, Meta(min_length=1)]
Key = Annotated[str, Meta(pattern=r"^[!-~]+\Z")]  # valid as a header value
Pair = Annotated[str, Meta(pattern=_PAIR)]
Count = Annotated[int, Meta(ge=1)]
# Name of a tenant: safe in a path, a header and a metric label.
Tenant = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]

Amount = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]
Interval = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]
Level = Literal["chat", "text", "tokens", "harmony"]
Severity = Literal["debug", "info", "warning", "error"]
Labelled = Annotated[str, Meta(pattern=_LABELLED)]
Host = Annotated[str, Meta(pattern=_HOST)]
Origin = Annotated[str, Meta(pattern=_ORIGIN)]


class SettingNote(Struct, frozen=True):
    """Help text of a setting, for --help and the docs."""

    group: str
    text: str
    default: str | None = None  # text for the default, if its value is not descriptive
    aliases: tuple[str, ...] = ()  # other names of the setting
    synonyms: Mapping[str, str] = {}  # other spellings of its values; a flag without a value is "true"


class SettingGroup(Struct, frozen=True):
    """A heading in --help and the docs. Calling it creates the note of a setting below it."""

    title: str

    def __call__(
        self, text: str, default: str | None = None, *aliases: str, synonyms: Mapping[str, str] | None = None
    ) -> SettingNote:
        return SettingNote(self.title, text, default, aliases, synonyms or {})


SERVER = SettingGroup("Server")
MODEL = SettingGroup("Model")
DEADLINES = SettingGroup("Deadlines")
STORE = SettingGroup("Store")
EGRESS = SettingGroup("Egress")
TOOLS = SettingGroup("Tools")
LLAMACPP = SettingGroup("Engine llamacpp")
FAKE = SettingGroup("Engine fake")
LOGGING = SettingGroup("Logging")
OBSERVABILITY = SettingGroup("Observing")
COMPATIBILITY = SettingGroup("Compatibility")
CLIENT = SettingGroup("Client")
LIMITS = SettingGroup("Limits")
