"""Builds the documentation as a site: `make site` writes build/site, which any web server can serve.

The generator is Zensical, in an environment of its own; this module prepares what it reads and adds what it lacks. The
navigation is that of docs/index.md. Every page is also there as Markdown, `state.md` beside `state.html`, and
`llms.txt` and `llms-full.txt` list and contain these. Nothing is loaded from other hosts, and the search runs in the
browser.
"""

import argparse
import json
import posixpath
import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from tools.docs_site.navigation import (
    INDEX,
    LINK,
    REPOSITORY_PAGES,
    ROOT,
    Page,
    is_internal,
    list_pages,
    resolve,
    split_prose,
)

SITE = ROOT / "build/site"
GENERATOR = ROOT / "build/zensical/bin/zensical"
THEME = Path(__file__).parent / "theme"
SETTINGS = Path(__file__).parent / "zensical.toml"
SECONDS = 300.0
SUMMARY = (
    "A Python server that gives any language model the OpenAI Responses API: stored responses, streaming, background "
    "work that survives a crash, and an agent loop with tools."
)
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link\b(?![^>]*canonical))\b[^>]*\b(?:src|href)=["']?(?:https?:)?//"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--url", default="", help="address of the site, for absolute links in llms.txt and a sitemap")
    pages = build(ROOT / "build/site-source", SITE, parser.parse_args().url)
    print(f"{SITE}: {len(pages) + 1} pages")


def build(source: Path, site: Path, url: str) -> list[Page]:
    """Build the site from what is written to `source`. Exits with the output of the generator if it reports a fault."""
    pages = prepare(source, url)
    command = [str(GENERATOR), "build", "--clean", "--strict"]
    result = subprocess.run(command, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
    if result.returncode:
        sys.exit(result.stdout.decode())
    add_texts(source, pages, url)
    if loaded := [path for path in source.glob("site/**/*.html") if _LOADED.search(path.read_text("utf-8"))]:
        sys.exit(f"{', '.join(path.name for path in loaded)}: a page loads something from another host.")
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(source / "site", site)
    return pages


def prepare(source: Path, url: str, root: Path = ROOT) -> list[Page]:
    """Write what the generator reads: the pages with links that lead to pages of the site, and the settings."""
    shutil.rmtree(source, ignore_errors=True)
    pages = list_pages(root)
    shutil.copytree(root / "docs", source / "pages", ignore=shutil.ignore_patterns("*.md"))
    shutil.copytree(THEME, source / "theme")
    shutil.copy(SETTINGS.with_name("site.css"), source / "pages")
    for path in (INDEX, *(page.path for page in pages)):
        target = source / "pages" / path.removeprefix("docs/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewrite_links(path, (root / path).read_text("utf-8"), root), "utf-8")
    added = [f"nav = {_to_toml(make_navigation(pages))}"]
    added += [f"site_url = {json.dumps(url)}"] if url else []
    settings = SETTINGS.read_text("utf-8").replace("[project]\n", "\n".join(["[project]", *added, ""]), 1)
    (source / "zensical.toml").write_text(settings, "utf-8")
    return pages


def rewrite_links(page: str, text: str, root: Path = ROOT) -> str:
    """Make the links of a page relative to its place on the site; links to other files become their path as text."""
    folder = posixpath.dirname(page.removeprefix("docs/"))

    def rewrite(match: re.Match[str]) -> str:
        label, target = match.groups()
        if not is_internal(target):
            return match[0]
        path, mark, anchor = resolve(page, target).partition("#")
        if path in REPOSITORY_PAGES or (path.startswith("docs/") and (root / path).is_file()):
            return f"{label}({posixpath.relpath(path.removeprefix('docs/'), folder or '.')}{mark}{anchor})"
        return f"{label[1:-1]} (`{path}`)"

    return "".join(
        LINK.sub(rewrite, piece) if not number % 2 else piece for number, piece in enumerate(split_prose(text))
    )


def make_navigation(pages: list[Page]) -> list[dict[str, Any]]:
    """Return the navigation as the generator takes it: titles with a path, or with the entries below them."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for page in pages:
        entries = parts.setdefault(page.part, [])
        if page.section:
            if not entries or page.section not in entries[-1]:
                entries.append({page.section: []})
            entries = entries[-1][page.section]
        if page.is_folder:
            entries.append({page.title: [page.site_path]})
        elif page.folder:
            (folder,) = entries[-1].values()
            folder.append({page.title: page.site_path})
        else:
            entries.append({page.title: page.site_path})
    return [{"Home": "index.md"}, *({part: entries} for part, entries in parts.items())]


def _to_toml(value: Any) -> str:
    match value:
        case list():
            return f"[{', '.join(map(_to_toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{json.dumps(key)} = {_to_toml(one)}' for key, one in value.items())} }}"
    return json.dumps(value)


def add_texts(source: Path, pages: list[Page], url: str) -> None:
    """Add the pages as Markdown, and the two files that language models read."""
    site = source / "site"
    names = ["index.md", *(page.site_path for page in pages)]
    for name in names:
        shutil.copy(source / "pages" / name, site / name)
    (site / "llms.txt").write_text(render_llms(pages, url), "utf-8")
    texts = [f"<!-- {name} -->\n\n{(site / name).read_text('utf-8').strip()}\n" for name in names]
    (site / "llms-full.txt").write_text("\n".join(texts), "utf-8")


def render_llms(pages: list[Page], url: str) -> str:
    """Render the list of all pages, in the format of llmstxt.org."""
    base = f"{url.rstrip('/')}/" if url else ""
    lines = ["# Antiphon", "", f"> {SUMMARY}", "", f"All pages in one file: [llms-full.txt]({base}llms-full.txt)", ""]
    for part, members in groupby(pages, key=lambda page: page.part):
        entries = [
            f"- [{page.title}]({base}{page.site_path})" + (f": {page.about}" if page.about else "") for page in members
        ]
        lines += [f"## {part}", "", *entries, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
