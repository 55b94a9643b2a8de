"""Check of the plug-ins that other packages have installed."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from antiphon.cli.doctor.findings import Finding, ok, warning
from antiphon.cli.terminal import join_names
from antiphon.config import Config
from antiphon.engines.registry import ENGINES
from antiphon.parsers.calls.registry import FORMATS
from antiphon.plugins import GROUPS, Group, list_plugins
from antiphon.stores.registry import STORES
from antiphon.tools.web_search.providers import PROVIDERS

_TABLES: Final[Mapping[Group, Mapping[str, Any]]] = {
    "engines": ENGINES,
    "parsers": FORMATS,
    "stores": STORES,
    "search": PROVIDERS,
}
_MAX_NAMES: Final = 12
_REMEDY: Final = "Uninstall that package, or have it rename its entry point."


def check_plugins(config: Config) -> Iterator[Finding]:
    """List the installed plug-ins, and report names that mean something else. None is imported."""
    found = {(group, name, package) for group in GROUPS for name, package in list_plugins(group)}
    names = [f"{group} {name} ({package})" for group, name, package in sorted(found)]
    yield ok(f"Installed: {join_names(names, _MAX_NAMES)}." if names else "None is installed.")
    for group, name, package in sorted(found):
        if name in _TABLES.get(group, {}):
            yield warning(f"antiphon.{group} {name!r} of {package} is never used: Antiphon has its own.", _REMEDY)
        elif sum((group, name) == other[:2] for other in found) > 1:
            yield warning(f"antiphon.{group} {name!r} of {package} cannot be used: another package has one.", _REMEDY)
