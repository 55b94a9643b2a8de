"""What the help and the docs say of a setting, and under which heading."""

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
