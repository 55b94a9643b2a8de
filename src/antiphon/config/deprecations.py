"""Names of settings that will be removed. Until then they work as before, and their use is reported.

A name is deprecated in one version, and removed two minor versions later at the earliest (docs/versions.md). A test
fails when that version is reached and the name is still here.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Deprecation(Struct, frozen=True, kw_only=True):
    """The versions in which a name was deprecated and is removed, and the name to use instead."""

    since: str
    removed: str
    remedy: str  # a sentence without its full stop

    def describe(self, origin: str) -> str:
        """Return the sentence for users. `origin`: the name as they have written it, and where."""
        return f"{origin} is deprecated since {self.since} and is removed in {self.removed}: {self.remedy}."


# By the name of a setting, or by one of its alternative names.
DEPRECATIONS: Final[Mapping[str, Deprecation]] = {
    "max_memory": Deprecation(since="0.2", removed="0.4", remedy="use shed_memory"),
}
