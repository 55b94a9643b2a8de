"""Lists of domains. An entry is a host name, `*.example.com` for all names below a domain, or `*` for all names."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.egress.urls import is_numeric, normalise_host

ALL = "*"
_BELOW = "*."


def parse_domain(text: str) -> str:
    """Return an entry other than `*` in lower-case ASCII. Raises ValueError for anything else, such as an address."""
    prefix = _BELOW if text.startswith(_BELOW) else ""
    try:
        name = normalise_host(text.removeprefix(prefix))
    except ValueError:
        name = "0"
    if is_numeric(name):
        raise ValueError(f"{text[:100]!r} is neither a host name nor *.DOMAIN")
    return prefix + name


class DomainList(Struct, frozen=True):
    entries: Sequence[str]

    def covers(self, domain: str) -> bool:
        """Return whether all names of an entry, or a name, are among those of this list."""
        return any(
            entry in (ALL, domain) or (entry.startswith(_BELOW) and domain.endswith(entry[1:]))
            for entry in self.entries
        )
