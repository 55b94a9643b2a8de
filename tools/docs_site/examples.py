"""Runs the examples of the documentation as they are written, against real server processes with the fake engine.

    make docs-examples                              all pages; some minutes
    make docs-examples ARGS="README.md docs/state.md"

Everything runs in a network of its own (`unshare`, Linux), where 127.0.0.1:8000 is free and the hosts of the pages,
such as gpu-1, are servers with the fake engine. Each page has an empty folder, which is also its home:

- The Python blocks of a page are one program, block by block. `client` and `model` exist, and what `before` of
  examples.toml defines for the page.
- Shell blocks are scripts. `antiphon serve` continues when the server answers; it is stopped at the end of the block.
- The JSON blocks of docs/api are sent to the route above them.

examples.toml lists what is not run, with reasons; tests/repository/test_docs.py checks that nothing is left out.
"""

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path, PurePath
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from msgspec import Struct, convert, field

from tools.docs_site.navigation import REPOSITORY_PAGES, ROOT, split_prose

FILES = (
    "README.md",
    *REPOSITORY_PAGES,
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
TABLE = Path(__file__).with_name("examples.toml")
ADDRESS = "http://127.0.0.1:8000"
SECONDS = 180
SHELLS = ("sh", "bash")
_ROUTE = re.compile(r"^`([A-Z]+) (/[^`]*)`$", re.MULTILINE)
_PYTHON = """
import json, os, sys, traceback
for page, folder, texts in json.load(sys.stdin):
    print(page, "…", file=sys.stderr)
    os.chdir(folder)
    names, failures = {"__name__": "__main__"}, {}
    for number, text in texts.items():
        try:
            exec(compile(text, f"block {number}", "exec"), names)
        except BaseException:
            failures[number] = traceback.format_exc(limit=-3)
    json.dump(failures, open(".failures.json", "w"))
"""
_ANTIPHON = """#!/bin/bash
# The program as it is, except that `serve` returns when the server answers, and that `connect` gets consent.
[ "$1" != connect ] || exec {program} "$@" < <(yes)
[ "$1" = serve ] || exec {program} "$@"
[ ! -f "$HOME/server" ] || {{ read -r pid < "$HOME/server"; kill "$pid"; tail --pid="$pid" -f /dev/null; }}
{program} "$@" > "$HOME/log" 2>&1 < /dev/null &
echo $! > "$HOME/server"
for attempt in $(seq 600); do
    ! grep -q 'http://[^ ]*:[0-9]' "$HOME/log" || exit 0
    kill -0 $! 2> /dev/null || break
    sleep 0.1
done
cat "$HOME/log" >&2
exit 1
"""


class Example(Struct, frozen=True):
    """A block of code of a page."""

    page: str
    number: int
    language: str
    text: str
    before: str = ""  # the prose between it and the block before

    def __str__(self) -> str:
        return f"{self.page}-{self.number}-{self.language}"


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A declaration of examples.toml: blocks, or commands of shell blocks, that are not run, and why."""

    reason: str
    pages: str = "*"
    languages: list[str] = []
    text: str = ""  # a regular expression

    def covers(self, example: Example, text: str) -> bool:
        return (
            PurePath(example.page).match(self.pages)
            and (not self.languages or example.language in self.languages)
            and re.search(self.text, text, re.MULTILINE) is not None
        )


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of examples.toml."""

    hosts: dict[str, str]
    servers: dict[str, list[str]]
    before: dict[str, str]
    files: dict[str, str]
    services: dict[str, str]
    row: list[Row]

    def find_reason(self, example: Example, text: str | None = None) -> str | None:
        """Return why a block, or one command of it, is not run; None if it is."""
        text = example.text if text is None else text
        return next((row.reason for row in self.row if row.covers(example, text)), None)


@cache
def load_table() -> Table:
    return convert(tomllib.loads(TABLE.read_text("utf-8")), Table)


def list_examples(page: str) -> Iterator[Example]:
    pieces = split_prose((ROOT / page).read_text("utf-8"))
    for number, block in enumerate(pieces[1::2], 1):
        first, _, body = block.partition("\n")
        indent = len(first) - len(first.lstrip())
        lines = [line[indent:] for line in body.splitlines()[:-1]]
        if language := first.strip("` \n"):
            yield Example(page, number, language, "\n".join(lines) + "\n", pieces[2 * number - 2])


def split_commands(text: str) -> Iterator[str]:
    """Yield the commands of a script: lines, or several with a quoted text or a backslash at the end."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        try:
            shlex.split(pending.replace("'s ", ""), comments=True)
        except ValueError:
            continue
        if not pending.endswith("\\\n"):
            yield pending
            pending = ""
    assert not pending, text


def list_commands(example: Example) -> list[tuple[str, str | None]]:
    """Return the commands of a shell block, each with the reason why it is not run, or None."""
    table = load_table()
    commands = [command for command in split_commands(example.text) if shlex.split(command, comments=True)]
    return [(command, table.find_reason(example, command)) for command in commands]


def find_reason(example: Example) -> str | None:
    """Return why nothing of an example is run; None if something is. Raises LookupError if nothing says so."""
    if example.language in SHELLS:
        reasons = [reason for _, reason in list_commands(example)]
        return None if None in reasons else reasons[0]
    reason = load_table().find_reason(example)
    if reason or example.language == "python" or (example.language == "json" and _ROUTE.search(example.before)):
        return reason
    raise LookupError(f"{example} is not run: add the reason to {TABLE.name}.")


class Result(Struct):
    """What came of the examples of one page."""

    run: int = 0
    declared: int = 0
    failures: dict[int, str] = field(default_factory=dict)


class PageRunner:
    """Runs the examples of one page in a folder of its own."""

    def __init__(self, page: str, folder: Path, result: Result) -> None:
        self._page = page
        self._folder = folder
        self._result = result
        for pattern, text in load_table().files.items():
            glob, _, name = pattern.rpartition(":")
            if PurePath(page).match(glob):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, "utf-8")
        (folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\nmax-time = 60\n")
        self._environment = {
            "HOME": str(folder),
            "PATH": f"{folder.parent}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),  # has the models
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PYTHONUTF8": "1",
            "KEY": "secret", "OPENAI_API_KEY": "secret", "ADMIN_KEY": "secret",
        }  # fmt: skip

    def run(self, examples: Sequence[Example]) -> None:
        self._result.run += len(examples)
        for example in examples:
            if example.language in SHELLS:
                self._run_script(example)
            elif example.language == "json":
                self._send(example)

    def _run_script(self, example: Example) -> None:
        commands = [": not run\n" if reason else command for command, reason in list_commands(example)]
        script = self._folder / ".script"
        script.write_text("".join(commands), "utf-8")
        with (self._folder / ".output").open("wb+") as file:
            ended = subprocess.run(
                ["timeout", str(SECONDS), "bash", "-ex", str(script)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self._folder, env=self._environment,
                check=False,
            )  # fmt: skip
            file.seek(max(0, file.tell() - 3000))
            output = file.read().decode(errors="replace")
        if (self._folder / "server").exists():
            stop(int((self._folder / "server").read_text()))
            (self._folder / "server").unlink()
        if ended.returncode:
            self._result.failures[example.number] = f"{output}\nexit code {ended.returncode}"

    def _send(self, example: Example) -> None:
        """Send a body to the last route that the page names before it. An example id need not exist."""
        method, path = _ROUTE.findall(example.before)[-1]
        url = ADDRESS + re.sub(r"{(\w{4})\w*}", r"\1_1", path)  # ids of conversations have to begin with conv_
        request = Request(url, example.text.encode(), {"Content-Type": "application/json"}, method=method)
        try:
            urlopen(request, timeout=SECONDS).read()
        except HTTPError as error:
            if not (error.code == 404 and ("{" in path or "_1" in example.text or "-1" in example.text)):
                self._result.failures[example.number] = f"{method} {url}: {error.code} {error.read().decode()}"


def run_programs(runnable: dict[str, list[Example]], folders: dict[str, Path], results: dict[str, Result]) -> None:
    """Run the Python blocks of all pages in one process, since importing takes longer than running."""
    before = load_table().before
    programs = []
    for page, examples in runnable.items():
        texts = {example.number: example.text for example in examples if example.language == "python"}
        if texts:
            programs.append((page, str(folders[page]), {0: before["*"] + before.get(page, ""), **texts}))
    subprocess.run([sys.executable, "-c", _PYTHON], input=json.dumps(programs), text=True, stdout=subprocess.DEVNULL)
    for page, folder, texts in programs:
        path = Path(folder) / ".failures.json"
        failures = json.loads(path.read_text("utf-8")) if path.exists() else {min(texts): "The process has ended."}
        results[page].failures |= {int(number): text for number, text in failures.items()}


def stop(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has failed, which its block shows
        os.kill(pid, signal.SIGTERM)
    subprocess.run(["tail", f"--pid={pid}", "-f", "/dev/null"], timeout=60, check=True)


@contextmanager
def serve(folder: Path, flags: Sequence[str]) -> Iterator[None]:
    """Run a server with a store of its own until the end of the block."""
    folder.mkdir()
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    subprocess.run([folder.parent / "antiphon", "serve", *flags], cwd=folder, env=environment, check=True)
    try:
        yield
    finally:
        stop(int((folder / "server").read_text()))


def name_server(example: Example) -> str:
    """Return the name of the server that has to run for an example; none beside one that uses all addresses."""
    if example.language not in SHELLS or "antiphon serve" not in example.text:
        return "server"
    return "nothing" if "0.0.0.0" in example.text else "engine"


def run_pages(pages: Sequence[str], folder: Path) -> dict[str, Result]:
    runners, results, runnable, folders = {}, {}, {}, {}
    for number, page in enumerate(pages):
        examples = [*list_examples(page)]
        runnable[page] = [example for example in examples if find_reason(example) is None]
        results[page] = Result(declared=len(examples) - len(runnable[page]))
        folders[page] = folder / f"page-{number}"
        folders[page].mkdir()
        runners[page] = PageRunner(page, folders[page], results[page])
    for name in ("server", "engine", "nothing"):
        with serve(folder / name, load_table().servers[name]) if name != "nothing" else nullcontext():
            if name == "server":
                run_programs(runnable, folders, results)
            for page, runner in runners.items():
                if chosen := [example for example in runnable[page] if name_server(example) == name]:
                    print(f"{page} …", file=sys.stderr)
                    runner.run(chosen)
    return results


def print_results(results: dict[str, Result]) -> None:
    width = max(map(len, results))
    print(f"{'page':{width}}  run  declared  failed")
    for page, result in results.items():
        if result.run or result.declared:
            print(f"{page:{width}}  {result.run:3}  {result.declared:8}  {len(result.failures) or ''}")
    run, declared = (sum(getattr(result, name) for result in results.values()) for name in ("run", "declared"))
    print(f"{run} blocks were run; {TABLE.name} says why {declared} were not.")
    for page, result in results.items():
        for number, text in sorted(result.failures.items()):
            print(f"\n--- {page}, block {number}\n{text}")


def enter_network() -> None:
    """Set up the network that `unshare` has made: loopback, and the names of the hosts in the pages."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(f"{address} {names}\n" for address, names in load_table().hosts.items()))
        file.flush()
        subprocess.run(["mount", "--bind", file.name, "/etc/hosts"], check=True)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
            return
        time.sleep(0.1)
    raise TimeoutError(f"Nothing listens on port {port} after {SECONDS} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=FILES, metavar="PAGE")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        command = ["unshare", "-rnm", sys.executable, "-m", "tools.docs_site.examples", "--inside", *options.pages]
        os.execvp(command[0], command)
    enter_network()
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "antiphon"
        program.write_text(_ANTIPHON.format(program=f"{sys.executable} -m antiphon"))
        program.chmod(0o755)
        services, quiet = [], subprocess.DEVNULL
        try:
            for port, text in load_table().services.items():
                services.append(subprocess.Popen([sys.executable, "-c", text], stdout=quiet, stderr=quiet))
                wait_for_port(int(port))
            results = run_pages(options.pages, Path(name))
        finally:
            for service in services:
                service.kill()
    print_results(results)
    sys.exit(any(result.failures for result in results.values()))


if __name__ == "__main__":
    main()
