"""What the help and the docs say of a setting, and under which heading.

The headings under which the help and the docs have settings.
"""

from collections.abc import Mapping

from msgspec import Struct


class Note(Struct, frozen=True):
    """What the help and the docs say of a setting."""

    group: str
    text: str
    default: str | None = None  # where the default's value says too little
    also: tuple[str, ...] = ()  # other names that it goes by
    words: Mapping[str, str] = {}  # other words for its values; a flag that stands alone says "true"


class Group(Struct, frozen=True):
    """A heading in the help and the docs."""

    title: str

    def __call__(
        self, text: str, default: str | None = None, *also: str, words: Mapping[str, str] | None = None
    ) -> Note:
        return Note(self.title, text, default, also, words or {})


SERVER = Group("Server")
MODEL = Group("Model")
DEADLINES = Group("Deadlines")
STORE = Group("Store")
EGRESS = Group("Egress")
TOOLS = Group("Tools")
LLAMACPP = Group("Engine llamacpp")
FAKE = Group("Engine fake")
LOGGING = Group("Logging")
OBSERVING = Group("Observing")
COMPATIBILITY = Group("Compatibility")
CLIENT = Group("Client")
LIMITS = Group("Limits")
