"""What the help and the docs say of a setting, and under which heading."""

from msgspec import Struct


class Note(Struct, frozen=True):
    """What the help and the docs say of a setting."""

    group: str
    text: str
    default: str | None = None  # where the default's value says too little
    also: tuple[str, ...] = ()  # other names that it goes by


class Group(Struct, frozen=True):
    """A heading in the help and the docs."""

    title: str

    def __call__(self, text: str, default: str | None = None, *also: str) -> Note:
        return Note(self.title, text, default, also)
