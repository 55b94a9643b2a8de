"""Help text of a setting, and the headings under which the help and the docs list settings."""

from collections.abc import Mapping

from msgspec import Struct


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
