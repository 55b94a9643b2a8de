"""The shape of the house, held by rules: layers, sizes, names, and the few places where special things may happen.

Rules that ruff knows are in pyproject.toml: no eval, exec, pickle or yaml.load, no TODO, no forgotten task, no
relative import.
"""

import ast
import importlib
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.paths import SRC

# From the outside inwards. A part imports only what stands below its own line; neighbours on a line stay strangers.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"wiring"},
    {"transport"},
    {"service"},
    {"agent"},
    {"render", "parsers", "engines", "tools", "stores"},
    {"core"},
    {"protocol"},
    {"config", "admission", "child_process", "egress", "observe"},
    {"ids", "errors", "limits"},
]
LEVELS = {part: level for level, parts in enumerate(LAYERS) for part in parts}

MAX_FILE_LINES = 600
MAX_MEDIAN_LINES = 150
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8

VAGUE = re.compile(r"(^|_)(utils?|helpers?|common|managers?|handlers?|processors?|misc)(_|$)")

# Where everything is caught: what runs and exchanges are tried in, the boundary of tools, the outermost edge.
CATCH_ALL = {
    "agent/engine_stream.py",
    "agent/tool_loop.py",
    "transport/middleware/app.py",
    "transport/websocket/response_task.py",
}

# Who may open connections of its own: the way out, the engines, and the terminal's client.
HTTP_CLIENTS = {"httpx", "httpx2", "requests", "aiohttp", "urllib3", "urllib.request", "http.client"}
MAY_CONNECT = {"egress", "engines", "cli"}

# Names that several packages share: the first that fits says whose it is.
SHARED = {
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-api",
}

# Extras that a child process imports: what reads files of others runs by itself.
CHILDREN = {"files": "service/attachments/pdf_child.py", "web": "tools/web_search/html_child.py"}

# What a part without IO does without.
IO = {"asyncio", "anyio", "socket", "time", "datetime", "subprocess", "threading", "http", "os", "selectors"}
WITHOUT_IO = {"core", "parsers"}

# What makes a class a plug-in of its folder, which must then stand in the folder's registry. What is made of engines is
# none to choose.
PLUGINS: dict[str, Callable[[ast.ClassDef], bool]] = {
    "engines": lambda node: {"generate", "capabilities"} <= _methods(node) and "members" not in _methods(node),
    "tools": lambda node: {"functions", "begin"} <= _methods(node) or "search" in _methods(node),
    "parsers": lambda node: node.name.endswith("Parser"),
    "stores": lambda node: (
        {"append", "tell"} <= _methods(node) or any(_name(base) == "SqlStore" for base in node.bases)
    ),
}


class Module:
    """One source file, read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = path.read_text("utf-8")
        self.tree = ast.parse(self.source)
        parts = path.relative_to(SRC).with_suffix("").parts
        self.dotted = ".".join(part for part in parts if part != "__init__")
        self.part = parts[1] if self.dotted != "antiphon" else ""

    def __str__(self) -> str:
        return self.path.relative_to(SRC / "antiphon").as_posix()

    @property
    def lines(self) -> int:
        return self.source.count("\n")

    @cached_property
    def imports(self) -> list[str]:
        """Dotted names, wherever they stand: at the top, in a function, under TYPE_CHECKING."""
        found: list[str] = []
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    found += [alias.name for alias in node.names]
                case ast.ImportFrom():  # never relative: ruff's TID252
                    found += [f"{node.module}.{alias.name}" for alias in node.names]
        return found

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


@cache
def modules() -> list[Module]:
    return [Module(path) for path in sorted((SRC / "antiphon").rglob("*.py"))]


@cache
def _dotted() -> set[str]:
    return {module.dotted for module in modules()}


def _ours(name: str) -> str:
    """The module of ours that an imported name lives in, or nothing."""
    known = _dotted()
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name if name.startswith("antiphon.") else ""


def test_every_part_has_its_place_in_the_layers() -> None:
    assert {module.part for module in modules()} - LEVELS.keys() <= {""}


def test_imports_point_one_way() -> None:
    wrong = []
    for module in modules():
        for name in filter(None, map(_ours, module.imports)):
            part = name.split(".")[1]
            if part != module.part and LEVELS[part] <= LEVELS.get(module.part, -1):
                wrong.append(f"{module} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module.dotted: {_ours(name) for name in module.imports} - {"", module.dotted} for module in modules()}
    TopologicalSorter(graph).prepare()


def test_a_part_without_io_has_none() -> None:
    wrong = []
    for module in modules():
        if module.part not in WITHOUT_IO:
            continue
        wrong += [f"{module} imports {name}" for name in module.imports if name.split(".")[0] in IO]
        wrong += [f"{module}: async {f.name}" for f in module.functions() if isinstance(f, ast.AsyncFunctionDef)]
    assert not wrong, "\n".join(wrong)


def test_files_are_small() -> None:
    sizes = {str(module): module.lines for module in modules() if module.lines}
    assert {name: lines for name, lines in sizes.items() if lines > MAX_FILE_LINES} == {}
    assert median(sizes.values()) <= MAX_MEDIAN_LINES


def test_functions_are_short_and_take_few_parameters() -> None:
    wrong = []
    for module in modules():
        for function in module.functions():
            lines = (function.end_lineno or 0) - function.lineno + 1
            arguments = function.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            if lines > MAX_FUNCTION_LINES or count > MAX_PARAMETERS:
                wrong.append(f"{module}:{function.lineno} {function.name}: {lines} lines, {count} parameters")
    assert not wrong, "\n".join(wrong)


def test_names_say_what_a_thing_is() -> None:
    named = [(module, part) for module in modules() for part in module.dotted.split(".")]
    classes = [(m, n.name) for m in modules() for n in ast.walk(m.tree) if isinstance(n, ast.ClassDef)]
    snake = [(module, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()) for module, name in named + classes]
    assert sorted({f"{module}: {name}" for module, name in snake if VAGUE.search(name)}) == []


def test_every_module_says_what_rule_it_keeps() -> None:
    assert [str(module) for module in modules() if module.lines and not ast.get_docstring(module.tree)] == []


def test_the_environment_is_read_in_one_place() -> None:
    names = {"environ", "environb", "getenv", "getenvb"}
    readers = {
        str(module)
        for module in modules()
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names})
    }
    assert [reader for reader in sorted(readers) if not reader.startswith("config")] == []


def test_only_a_few_parts_open_connections() -> None:
    wrong = []
    for module in modules():
        if module.part in MAY_CONNECT:
            continue
        found = {client for name in module.imports for client in HTTP_CLIENTS if f"{name}.".startswith(f"{client}.")}
        wrong += [f"{module} imports {client}" for client in sorted(found)]
    assert not wrong, "\n".join(wrong)


def test_everything_is_caught_in_three_places_only() -> None:
    catchers = [
        str(module)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and _catches_all(node)
    ]
    assert {*catchers} == CATCH_ALL
    assert len(catchers) <= len(CATCH_ALL) + 1  # what a callback of the loop cannot raise, hearing hands to its run


def _catches_all(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in ("Exception", "BaseException") for kind in kinds)


def test_an_ignored_type_has_a_code_and_a_reason() -> None:
    wrong = []
    for module in modules():
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
            ignored = token.type == tokenize.COMMENT and "type: ignore" in token.string
            if ignored and not re.search(r"type: ignore\[[a-z-]+(, ?[a-z-]+)*\]\s+(#|-)\s*\S", token.string):
                wrong.append(f"{module}:{token.start[0]} {token.string}")
    assert not wrong, "\n".join(wrong)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((SRC.parent / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def _packages(lines: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0] for line in lines}


_owners = cache(packages_distributions)


def _foreign(module: Module) -> set[str]:
    """The packages of others that it imports, as pip calls them."""
    names = {name for name in module.imports if name.split(".")[0] not in sys.stdlib_module_names | {"antiphon"}}
    return {_package(name) for name in names}


def _package(name: str) -> str:
    shared = next((package for prefix, package in SHARED.items() if f"{name}.".startswith(f"{prefix}.")), None)
    root = name.split(".")[0]
    return shared or _owners().get(root, [root])[0].lower().replace("_", "-")


def test_every_dependency_is_declared_and_every_declared_one_is_used() -> None:
    project = _project()
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    imported = {package for module in modules() for package in _foreign(module)}
    assert imported == _packages(project["dependencies"]) | _packages(extras)


def test_an_extra_is_imported_by_its_own_plug_in_alone_and_that_by_nobody() -> None:
    """A plug-in is a file, or several that may know each other, named after the extra, or in a folder that is."""

    def belongs(module: Module, extra: str) -> bool:
        return (
            module.path.stem.startswith(extra) or module.path.parent.name == extra or str(module) == CHILDREN.get(extra)
        )

    wrong = []
    for extra, lines in _project()["optional-dependencies"].items():
        users = [module for module in modules() if _foreign(module) & _packages(lines)]
        wrong += [f"{module} imports what {extra} brings" for module in users if not belongs(module, extra)]
        own = {module.dotted for module in users}
        for module in modules():
            if module.dotted not in own and not belongs(module, extra):
                wrong += [f"{module} imports {name}" for name in own & set(map(_ours, module.imports))]
    assert not wrong, "\n".join(wrong)


def _registries() -> list[Module]:
    return [module for module in modules() if module.path.name == "registry.py"]


def _registered(registry: Module) -> list[str]:
    """Every "module:name" that stands in the file."""
    strings = [node.value for node in ast.walk(registry.tree) if isinstance(node, ast.Constant)]
    return [text for text in strings if isinstance(text, str) and re.fullmatch(r"antiphon[\w.]+:\w+", text)]


@pytest.mark.parametrize("registry", _registries(), ids=str)
def test_every_line_of_a_registry_loads(registry: Module) -> None:
    assert _registered(registry)
    for line in _registered(registry):
        name, _, attribute = line.partition(":")
        assert callable(getattr(importlib.import_module(name), attribute)), line


@pytest.mark.parametrize("part", sorted(PLUGINS))
def test_every_plug_in_is_registered(part: str) -> None:
    registered = {line for registry in _registries() if registry.part == part for line in _registered(registry)}
    plugins = {
        f"{module.dotted}:{node.name}"
        for module in modules()
        if module.part == part and module.path.name != "base.py"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and PLUGINS[part](node)
    }
    assert plugins - registered == set()


def _methods(node: ast.ClassDef) -> set[str]:
    return {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
