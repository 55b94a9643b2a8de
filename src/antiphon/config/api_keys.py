"""The keys of clients, as an operator gives them for the simple case: by flag or variable, or in a file.

A line of the file is KEY, or TENANT KEY; empty lines and those that begin with # say nothing. A key by itself is of the
tenant "default" and may do everything; one of a named tenant may not administer.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.config.key_files import read_key_file
from antiphon.config.kinds import Key, Tenant
from antiphon.config.table import Config
from antiphon.errors import StartupError

_EXPECTED = "expected KEY or TENANT KEY, the tenant in small letters, digits, dots, dashes and underscores"


class GivenKey(Struct, frozen=True):
    place: str  # where it was given: flag 1, line 3
    key: str
    tenant: str | None = None  # None: the one that all are without keys

    def __repr__(self) -> str:
        """Without the key."""
        return f"GivenKey(place={self.place!r}, tenant={self.tenant!r})"


def given_keys(config: Config) -> list[GivenKey]:
    """Raises StartupError, which does not repeat a key."""
    given = [GivenKey(f"flag {number}", key) for number, key in enumerate(config.api_key, 1)]
    if config.api_key_file is not None:
        given += _read(config.api_key_file)
    owners: dict[str, str | None] = {}
    for one in given:
        if owners.setdefault(one.key, one.tenant) != one.tenant:
            raise StartupError(f"The API key of {one.place} was given before, for another tenant.")
    return given


def _read(path: Path) -> list[GivenKey]:
    keys = [*_keys(path)]
    if not keys:
        raise StartupError(f"{path}, which --api-key-file names, has no key in it; {_EXPECTED}.")
    return keys


def _keys(path: Path) -> Iterator[GivenKey]:
    for number, line in enumerate(read_key_file(path, "--api-key-file", _EXPECTED).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        tenant = words[0] if len(words) > 1 else None
        if len(words) > 2 or not _fits(words[-1], Key) or not (tenant is None or _fits(tenant, Tenant)):
            raise StartupError(
                f"{path}, which --api-key-file names, has a line {number} that does not fit; {_EXPECTED}."
            )
        yield GivenKey(f"line {number}", words[-1], tenant)


def _fits(text: str, kind: object) -> bool:
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True
