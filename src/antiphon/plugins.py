"""Plug-ins: the entries of a registry, and those that other packages add to it by entry points.

    [project.entry-points."antiphon.engines"]
    echo = "antiphon_echo:EchoEngine"

A name is looked up in the table of the registry first, then among the entry points of its group. A plug-in of another
package is imported only if the settings name it, so an installed package changes nothing by itself.
"""

from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal

from antiphon.errors import StartupError

Group = Literal["engines", "parsers", "stores", "tools", "search"]
GROUPS: Final[tuple[Group, ...]] = ("engines", "parsers", "stores", "tools", "search")


def load_reference(reference: str) -> Any:
    """Import the object that "module:name" names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def find_plugin(group: Group, name: str, table: Mapping[str, Any], base: type = object) -> Any | None:
    """Return the entry of the table, or the plug-in of another package, imported; None if there is neither.

    Entries of the table are objects or references. A plug-in must be an instance or a subclass of `base`. Raises
    StartupError if it is not, if it cannot be imported, or if two packages have one of this name.
    """
    if name in table:
        entry = table[name]
        return load_reference(entry) if isinstance(entry, str) else entry
    offered = _list_entry_points(group).get(name, [])
    if len(offered) > 1:
        packages = " and ".join(sorted(map(_name_package, offered)))
        raise StartupError(f"{packages} both have a plug-in antiphon.{group} {name!r}: uninstall one of them.")
    return _load(offered[0], base) if offered else None


def list_names(group: Group, table: Mapping[str, Any]) -> list[str]:
    """Return the names of the table and of the plug-ins of other packages, sorted."""
    return sorted({*table, *_list_entry_points(group)})


def list_plugins(group: Group) -> list[tuple[str, str]]:
    """Return the name and the package of every plug-in of other packages, sorted; none is imported."""
    return sorted((name, _name_package(one)) for name, found in _list_entry_points(group).items() for one in found)


def _list_entry_points(group: Group) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for one in entry_points(group=f"antiphon.{group}"):
        found[one.name].append(one)
    return found


def _load(entry: EntryPoint, base: type) -> Any:
    label = f"The plug-in {entry.group} {entry.name!r} of {_name_package(entry)}"
    try:
        found = entry.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise StartupError(f"{label} cannot be imported: {error}. Update or uninstall that package.") from error
    if base not in (found if isinstance(found, type) else type(found)).__mro__:  # also for a Protocol
        raise StartupError(f"{label} is not of the kind {base.__name__} ({entry.value}); see docs/extending.md.")
    return found


def _name_package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module
