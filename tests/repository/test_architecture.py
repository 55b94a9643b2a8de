"""The structure of the source as rules: layers, folders, sizes, names, and the few places where special things happen.

Rules that ruff checks are in pyproject.toml: no eval, exec, pickle or yaml.load, no TODO, no relative import.
"""

import ast
import importlib
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from antiphon.engines.registry import ENGINES
from tests.support.paths import ROOT, SRC, TESTS

# From the outside inwards. A part imports only from rows below its own; parts in one row do not import each other.
LAYERS = [
    {"__main__"},
    {"cli", "testing"},
    {"wiring"},
    {"transport"},
    {"service"},
    {"agent"},
    {"image_services"},
    {"render", "parsers", "engines", "tools", "stores"},
    {"core", "clients"},
    {"protocol", "sandbox"},
    {"config", "admission", "egress", "observe", "plugins"},
    {
        "child_limits",
        "ids",
        "errors",
        "limits",
        "http1",
        "http_server",
        "offload",
        "operating_system",
        "token_bucket",
        "version",
    },
]

LEVELS = {part: level for level, parts in enumerate(LAYERS) for part in parts}

# The same within a package that has sub-packages: modules and sub-packages, from the outside inwards. Members of one
# row may import each other as long as no cycle results.
SUBLAYERS: dict[str, list[set[str]]] = {
    "transport": [{"endpoints", "operating", "websocket"}, {"process"}, {"streaming"}, {"middleware"}, {"http"}],
    "service": [
        {"operations"},
        {"containers", "skills", "vector_stores"},
        {"responses", "completions", "compact", "tokens", "engine_tasks", "conversations", "files", "images"},
        {"runs"},
        {"planning"},
        {"tool_loop"},
        {"prompting"},
        {"persistence", "model_io"},
        {"access"},
        {"attachments", "keyring"},
    ],
    "render": [
        {"audio", "messages", "content", "transcript", "control_token_escape"},
        {"template", "harmony", "tools"},
    ],
    "parsers": [
        {"unescape", "detection", "chat", "raw"},
        {"reasoning", "harmony", "calls"},
        {"json_repair", "partial_json", "base", "logprob_alignment", "harmony_header"},
    ],
    "engines": [
        {"factory"},
        {"discovery"},
        {"http"},
        {"openvino", "llamacpp"},
        {"embedded"},
        {"fake", "pool", "client"},
        {"base", "connection", "gguf", "registry", "turn_scheduler"},
    ],
    "engines.http": [
        {"adapters"},
        {"base"},
        {"tasks", "endpoints", "health_monitor", "body"},
        {"readers"},
        {"engine_url", "error_mapping", "fields"},
    ],
    "engines.fake": [
        {"engine"},
        {"script", "tasks"},
        {"harmony"},
        {"playback"},
        {"answer", "prompt_reader"},
        {"schema_instance"},
        {"tokens"},
    ],
    "tools": [
        {"tool_server"},
        {"code_interpreter", "file_search", "hosted_shell", "image_generation", "mcp", "web_search"},
        {"registry", "base", "untrusted_images", "untrusted_text"},
    ],
    "tools.web_search": [
        {"tool"},
        {"browser"},
        {"citations"},
        {"functions", "html_child", "page_fetch", "page_view", "providers"},
    ],
    "stores": [
        {"registry"},
        {"live", "contents"},
        {
            *("postgres", "postgres_pool", "postgres_vectors", "writer_thread", "schema"),
            *("sqlite", "sqlite_connection", "sqlite_file"),
        },
        {"sql"},
        {"base", "search_words", "vector_rows"},
    ],
    "core": [
        {"replay"},
        {"emitter", "history", "dialects"},
        {
            *("data_urls", "deltas", "documents", "encrypted_reasoning", "file_search", "harmony", "images"),
            "image_generation",
            *(
                "code_approvals",
                "mcp_rules",
                "multi_match",
                "prompt",
                "shell_output",
                "skills",
                "stop_strings",
                "stream_lanes",
                "truncated_json",
                "usage",
            ),
        },
    ],
    "sandbox": [
        {"factory", "gateway"},
        {"local", "worker_pool"},
        {"remote"},
        {"client", "link"},
        {"base"},
        {"relays"},
        {"connection", "upgrade"},
        {"worker"},
    ],
    "testing": [
        {"contracts", "fixtures"},
        {"call_format_tests", "engine_tests", "search_tests", "store_tests", "tool_tests"},
        {"rows", "server", "suite"},
    ],
    "protocol": [{"bodies"}, {"decoding"}, {"schemas"}, {"types"}],
    "protocol.types": [
        {"containers", "files", "operations", "skills", "vector_stores"},
        {"completions", "chat", "legacy_events", "lists"},
        {"events", "tool_events", "request", "conversation", "response"},
        {"items"},
        {"anthropic"},
        {"tools"},
        {"filters"},
        {"parts", "shared_list", "tool_choice", "traces"},
    ],
    "cli": [
        {"commands"},
        {"bench", "connect", "doctor", "keys", "models", "sandbox_packages", "sandbox_worker"},
        {"chat", "db", "file_changes"},
        {"client", "options", "terminal"},
    ],
}

TEST_MODULES = re.compile(r"testing/(rows/|store_tests/|\w+_tests\.py)")
MAX_FOLDER_FILES = 20
MAX_FILE_LINES = 600
MAX_P90_LINES = 290  # nine of ten files are shorter
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
MAX_SINGLE_IMPORTERS = 60

# Words that do not say what a thing is.
VAGUE = re.compile(r"(^|_)(utils?|helpers?|common|managers?|handlers?|processors?|misc)(_|$)")
BANNED = frozenset({
    *("told", "said", "heard", "given", "asked", "known", "tell", "say", "hear", "ask", "deed", "word", "manner"),
    *("place", "way", "wish", "standing", "most", "rest", "left", "thing", "stuff"),
})  # fmt: skip
# Banned words that stay: names in JSON, in TOML, in stored records, in messages between processes, and in metrics (the
# methods of stores and live logs are values of the label `operation`).
WIRE_NAMES = {
    ("protocol/types/traces.py", "Heard"),
    *((f"stores/live/{name}.py", "tell") for name in ("base", "redis")),
    ("cli/bench/figures.py", "most"),
    ("engines/fake/script.py", "say"),
    ("service/persistence/rows.py", "asked"),
    ("stores/live/base.py", "left"),
    ("stores/live/base.py", "most"),
}

# Wire types that share a name: each is named as in its API, and schemas of /openapi.json are named after classes.
SHARED_CLASS_NAMES = {"Ping"}

# Folders whose modules have one importer by design, and why.
ONE_IMPORTER_FOLDERS = {
    "cli": "one module per command",
    "cli/bench": "the stages of one command",
    "cli/doctor": "one module per check",
    "engines/fake": "the stages of one engine",
    "engines/openvino": "the stages of one engine",
    "engines/pool": "the parts of one engine",
    "stores/sql": "one module per table",
    "testing": "one module per contract",
    "testing/rows": "one module per kind of row",
    "testing/store_tests": "one module per subject of a contract",
}

# Modules that catch every exception: runs, tool calls, the outer edges of the server, of HTTP and of WebSocket, and the
# process that runs code of users.
CATCH_ALL = {
    "agent/engine_stream.py",
    "agent/tool_loop.py",
    "http_server/http_exchange.py",
    "sandbox/worker/kernel.py",
    "transport/middleware/app.py",
    "transport/websocket/response_task.py",
}

# Packages that may open connections of their own: the egress client, the engines, and the client in the terminal.
HTTP_CLIENTS = {"httpx", "httpx2", "requests", "aiohttp", "urllib3", "urllib.request", "http.client"}
MAY_CONNECT = {"egress", "engines", "cli", "testing"}

# The HTTP server serves any ASGI application: it imports nothing else of this package, and only processes that start it
# import it.
SERVER_PACKAGES = {"httptools", "msgspec", "uvicorn", "websockets"}
SERVER_USERS = {
    "transport/process/server.py",
    *(f"engines/openvino/{name}.py" for name in ("child", "encoder", "loader", "server")),
}

# Import names that several distributions share; the first match determines the distribution.
PLUGINS_OF_PYTEST = {"anyio"}  # found by pytest, not imported
SHARED_NAMESPACES = {
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-api",
}

# Extras that only a child process imports, because it parses untrusted files.
CHILD_MODULES = {"files": "service/attachments/document_child.py", "web": "tools/web_search/html_child.py"}

# Modules that a part without IO does not import.
IO = {"asyncio", "anyio", "socket", "time", "datetime", "subprocess", "threading", "http", "os", "selectors"}
WITHOUT_IO = {"core", "parsers"}

# What makes a class a plug-in of its folder, which must then be in the folder's registry. A pool of engines is none.
PLUGINS: dict[str, Callable[[ast.ClassDef], bool]] = {
    "engines": lambda node: {"generate", "capabilities"} <= _methods(node) and "members" not in _methods(node),
    "tools": lambda node: {"list_functions", "begin"} <= _methods(node),
    "parsers": lambda node: any(_name(base) == "DelimitedCalls" for base in node.bases),
    "stores": lambda node: {"append", "tell"} <= _methods(node) or any(_name(base) == "Store" for base in node.bases),
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

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[str]:
        """Imported dotted names anywhere in the file: at the top, in functions, under TYPE_CHECKING."""
        found: list[str] = []
        for node in self.nodes:
            match node:
                case ast.Import():
                    found += [alias.name for alias in node.names]
                case ast.ImportFrom():  # never relative: ruff's TID252
                    found += [f"{node.module}.{alias.name}" for alias in node.names]
        return found

    @cached_property
    def imported_modules(self) -> set[str]:
        """Modules of this package that the file imports."""
        return {name for name in map(_resolve, self.imports) if name} - {self.dotted}

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                yield node


@cache
def modules() -> list[Module]:
    return [Module(path) for path in sorted((SRC / "antiphon").rglob("*.py"))]


@cache
def _dotted_names() -> set[str]:
    return {module.dotted for module in modules()}


def _resolve(name: str) -> str:
    """Return the module of this package that defines an imported name, or ""."""
    names = _dotted_names()
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name if name.startswith("antiphon.") else ""


def test_every_part_is_in_the_layers() -> None:
    assert {module.part for module in modules()} - LEVELS.keys() <= {""}


def test_imports_point_to_lower_layers() -> None:
    wrong = []
    for module in modules():
        for name in sorted(module.imported_modules):
            part = name.split(".")[1]
            if part != module.part and LEVELS[part] <= LEVELS.get(module.part, -1):
                wrong.append(f"{module} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", SUBLAYERS)
def test_imports_within_a_package_point_to_lower_rows(package: str) -> None:
    levels = {member: level for level, row in enumerate(SUBLAYERS[package]) for member in row}
    prefix = f"antiphon.{package}."
    wrong = []
    for module in modules():
        if not module.dotted.startswith(prefix):
            continue
        own = module.dotted.removeprefix(prefix).split(".")[0]
        assert own in levels, f"{own} is missing in SUBLAYERS[{package!r}]"
        for name in module.imported_modules:
            other = name.removeprefix(prefix).split(".")[0]
            if name.startswith(prefix) and levels[other] < levels[own]:
                wrong.append(f"{module} imports {name}")
    assert not wrong, "\n".join(sorted(wrong))


def test_every_package_with_sub_packages_has_an_order() -> None:
    packages = {module.dotted.removeprefix("antiphon.") for module in modules() if module.is_package}
    parents = {name.rpartition(".")[0] for name in packages if "." in name}
    assert parents - SUBLAYERS.keys() - {""} == set()


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    TopologicalSorter({module.dotted: module.imported_modules for module in modules()}).prepare()


@pytest.mark.parametrize("tree", ["src", "tests", "drills", "bench", "tools"])
def test_folders_have_at_most_20_files(tree: str) -> None:
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in (ROOT / tree).rglob("*.py"))
    assert {folder: count for folder, count in counts.items() if count > MAX_FOLDER_FILES} == {}


def test_a_part_without_io_has_none() -> None:
    wrong = []
    for module in modules():
        if module.part not in WITHOUT_IO:
            continue
        wrong += [f"{module} imports {name}" for name in module.imports if name.split(".")[0] in IO]
        wrong += [f"{module}: async {f.name}" for f in module.functions() if isinstance(f, ast.AsyncFunctionDef)]
    assert not wrong, "\n".join(wrong)


def test_files_are_short() -> None:
    sizes = {str(module): module.lines for module in modules() if not module.is_package}
    assert {name: lines for name, lines in sizes.items() if lines > MAX_FILE_LINES} == {}
    assert quantiles(sizes.values(), n=10)[8] <= MAX_P90_LINES


def test_only_packages_reexport_names() -> None:
    """`import X as X` in a module gives a name a second address, and hides where it is defined."""
    wrong = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and not module.is_package:
                wrong += [f"{module}: {alias.name}" for alias in node.names if alias.asname == alias.name]
    assert not wrong, "\n".join(wrong)


def test_few_modules_have_a_single_importer() -> None:
    """A module that one other module imports may be a fragment of that one.

    It is none if the importer is in another layer, because a merge would break the layer order; if it is a registry,
    where extensions add a line; if its package exports it; or if its folder has one module per subject.
    """
    importers: dict[str, list[Module]] = defaultdict(list)
    for module in modules():
        for name in module.imported_modules:
            importers[name].append(module)
    single = {module: importers[module.dotted][0] for module in modules() if len(importers[module.dotted]) == 1}
    fragments = [
        module
        for module, importer in single.items()
        if not (module.is_package or importer.is_package or module.path.name == "registry.py")
        and importer.part == module.part
    ]
    folders = {str(module): Path(str(module)).parent.as_posix() for module in fragments}
    unexplained = sorted(name for name, folder in folders.items() if folder not in ONE_IMPORTER_FOLDERS)
    assert len(unexplained) < MAX_SINGLE_IMPORTERS, "\n".join(unexplained)
    assert ONE_IMPORTER_FOLDERS.keys() <= set(folders.values()), "a folder needs no exception any more"


def test_functions_are_short_and_have_few_parameters() -> None:
    wrong = []
    for module in modules():
        for function in module.functions():
            lines = (function.end_lineno or 0) - function.lineno + 1
            arguments = function.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            if lines > MAX_FUNCTION_LINES or count > MAX_PARAMETERS:
                wrong.append(f"{module}:{function.lineno} {function.name}: {lines} lines, {count} parameters")
    assert not wrong, "\n".join(wrong)


def test_module_and_class_names_are_not_vague() -> None:
    names = [(module, part) for module in modules() for part in module.dotted.split(".")]
    names += [(module, node.name) for module in modules() for node in module.classes()]
    snake = [(module, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()) for module, name in names]
    assert sorted({f"{module}: {name}" for module, name in snake if VAGUE.search(name)}) == []


def test_no_identifier_is_a_banned_word() -> None:
    found = {(str(module), name) for module in modules() for name in _defined_names(module.nodes)}
    assert {(file, name) for file, name in found if name.strip("_").lower() in BANNED} == WIRE_NAMES


def _defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of functions, classes, parameters, variables and attributes that a file defines."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
                yield name
            case ast.alias(asname=str() as name):
                yield name


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in module.classes():
            homes[node.name].append(str(module))
    assert {name: files for name, files in homes.items() if len(files) > 1}.keys() == SHARED_CLASS_NAMES, homes


def test_every_module_and_package_has_a_docstring() -> None:
    assert [str(module) for module in modules() if not ast.get_docstring(module.tree)] == []


def test_the_docstring_of_a_package_is_its_purpose_in_one_line() -> None:
    docstrings = {str(module): ast.get_docstring(module.tree) or "" for module in modules() if module.is_package}
    assert [name for name, text in docstrings.items() if not text.partition("\n")[0].endswith(".")] == []


def test_tests_mirror_the_source() -> None:
    """Each module with functions has a test file of its own name in the mirrored folder, or a test file names it.

    The suites and builders of `testing` are tests themselves.
    """
    wrong = []
    for module in modules():
        if module.is_package or not any(module.functions()) or TEST_MODULES.search(str(module)):
            continue
        path = Path(str(module))
        mirrored = TESTS / path.parent / f"test_{path.name}"
        if not mirrored.exists() and str(module) not in _covered_modules():
            wrong.append(str(module))
    assert not wrong, "\n".join(wrong)


@cache
def _covered_modules() -> frozenset[str]:
    """Modules that docstrings of test files name ("Covers `engines/gguf.py`"), and engines: a contract covers them."""
    files = chain(TESTS.rglob("test_*.py"), (SRC / "antiphon" / "testing").rglob("*.py"))
    docstrings = [path.read_text("utf-8").split('"""', 2)[1:2] for path in files]
    lists = [
        found
        for text in chain.from_iterable(docstrings)
        for found in re.findall(r"Covers ((?:`[\w/.]+`[,. \nand]*)+)", text)
    ]
    engines = [f"{target.partition(':')[0].partition('.')[2].replace('.', '/')}.py" for target in ENGINES.values()]
    return frozenset([*(name for names in lists for name in re.findall(r"`([\w/.]+)`", names)), *engines])


def test_test_files_name_existing_modules() -> None:
    assert _covered_modules() - {str(module) for module in modules()} == set()


def test_only_config_reads_the_environment() -> None:
    names = {"environ", "environb", "getenv", "getenvb"}
    readers = {
        str(module)
        for module in modules()
        for node in module.nodes
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names})
    }
    # The sandbox process is a program of its own, which starts with an empty environment and sets that of containers.
    assert [reader for reader in sorted(readers) if not reader.startswith(("config/", "sandbox/worker/"))] == []


def test_only_some_packages_open_connections() -> None:
    wrong = []
    for module in modules():
        if module.part in MAY_CONNECT:
            continue
        found = {client for name in module.imports for client in HTTP_CLIENTS if f"{name}.".startswith(f"{client}.")}
        wrong += [f"{module} imports {client}" for client in sorted(found)]
    assert not wrong, "\n".join(wrong)


def test_the_http_server_and_the_application_do_not_know_each_other() -> None:
    server = [module for module in modules() if module.part == "http_server"]
    others = [module for module in modules() if module.part != "http_server"]
    imported = {name.split(".")[0] for module in server for name in module.imports if "antiphon" not in name}
    assert imported - sys.stdlib_module_names == SERVER_PACKAGES
    assert {name.split(".")[1] for module in server for name in module.imported_modules} == {"http_server"}
    users = {str(module) for module in others if any(".http_server." in name for name in module.imported_modules)}
    assert users == SERVER_USERS


def test_few_modules_catch_every_exception() -> None:
    catchers = [
        str(module)
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.ExceptHandler) and _catches_all(node)
    ]
    assert {*catchers} == CATCH_ALL
    assert (
        len(catchers) <= len(CATCH_ALL) + 1
    )  # a callback of the event loop cannot raise; engine_stream passes its error to the run


def test_no_group_of_a_pattern_has_a_possessive_quantifier() -> None:
    """Before Python 3.11.5, and so on Debian 12, such a group can match too little (python/cpython#106052)."""
    patterns = [(module, match) for module in modules() for match in re.findall(r"\)[*+?}]\+[^,].*", module.source)]
    assert [f"{module}: {match}" for module, match in patterns] == []


def _catches_all(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in ("Exception", "BaseException") for kind in kinds)


def test_a_type_ignore_comment_has_a_code_and_a_reason() -> None:
    wrong = []
    for module in [one for one in modules() if "type: ignore" in one.source]:
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
            ignored = token.type == tokenize.COMMENT and "type: ignore" in token.string
            if ignored and not re.search(r"type: ignore\[[a-z-]+(, ?[a-z-]+)*\]\s+(#|-)\s*\S", token.string):
                wrong.append(f"{module}:{token.start[0]} {token.string}")
    assert not wrong, "\n".join(wrong)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((SRC.parent / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def _packages(lines: list[str]) -> set[str]:
    """Return the names of the packages, without our own: the extra `all` names the others by it."""
    return {re.split(r"[^\w-]", line)[0] for line in lines} - {"antiphon"}


_distributions = cache(packages_distributions)


def _third_party(module: Module) -> set[str]:
    """Return the distributions that a module imports."""
    names = {name for name in module.imports if name.split(".")[0] not in sys.stdlib_module_names | {"antiphon"}}
    return {_package(name) for name in names}


def _package(name: str) -> str:
    shared = next(
        (package for prefix, package in SHARED_NAMESPACES.items() if f"{name}.".startswith(f"{prefix}.")), None
    )
    root = name.split(".")[0]
    return shared or _distributions().get(root, [root])[0].lower().replace("_", "-")


def test_declared_and_imported_dependencies_are_the_same() -> None:
    project = _project()
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    imported = {package for module in modules() for package in _third_party(module)}
    assert imported | PLUGINS_OF_PYTEST == _packages(project["dependencies"]) | _packages(extras)


def test_an_extra_is_imported_only_by_its_own_plug_in() -> None:
    """Its modules are named after the extra or are in a folder of that name; no other module imports them."""

    def belongs(module: Module, extra: str) -> bool:
        return (
            module.path.stem.startswith(extra)
            or extra in module.dotted.split(".")
            or str(module) == CHILD_MODULES.get(extra)
        )

    wrong = []
    for extra, lines in _project()["optional-dependencies"].items():
        users = [module for module in modules() if _third_party(module) & _packages(lines)]
        wrong += [f"{module} imports a package of the extra {extra}" for module in users if not belongs(module, extra)]
        own = {module.dotted for module in users}
        for module in modules():
            if module.dotted not in own and not belongs(module, extra):
                wrong += [f"{module} imports {name}" for name in own & module.imported_modules]
    assert not wrong, "\n".join(wrong)


def _registries() -> list[Module]:
    return [module for module in modules() if module.path.name == "registry.py"]


def _registered(registry: Module) -> list[str]:
    """Return every "module:name" in the file."""
    strings = [node.value for node in registry.nodes if isinstance(node, ast.Constant)]
    return [text for text in strings if isinstance(text, str) and re.fullmatch(r"antiphon[\w.]+:\w+", text)]


@pytest.mark.parametrize("registry", _registries(), ids=str)
def test_every_registry_entry_loads(registry: Module) -> None:
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
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and PLUGINS[part](node)
    }
    assert plugins - registered == set()


def _methods(node: ast.ClassDef) -> set[str]:
    return {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
