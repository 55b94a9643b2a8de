"""The pages of the documentation in their order, which docs/index.md lists: parts, sections, pages.

A part is a heading of the second level, a section one of the third, and a page is a line of a list:
`- [Title](path): description`. The index page of a folder stands for its whole folder: the pages that it links to
follow it.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
INDEX = "docs/index.md"
REPOSITORY_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)(?:: (.+))?$")
_FENCE = re.compile(r"^ *(```|~~~)")


class Page(Struct, frozen=True):
    """A page: its path in the repository, its title in the navigation, and what it is about."""

    path: str
    title: str
    about: str
    part: str
    section: str
    folder: str = ""  # the index page that stands for it

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/index.md")

    @property
    def site_path(self) -> str:
        return self.path.removeprefix("docs/")


def list_pages(root: Path = ROOT) -> list[Page]:
    """Return all pages in the order of the navigation, without the front page."""
    part = section = ""
    pages: list[Page] = []
    for line in (root / INDEX).read_text("utf-8").splitlines():
        if line.startswith("## "):
            part, section = line[3:], ""
        elif line.startswith("### "):
            section = line[4:]
        elif part and (entry := _ENTRY.match(line)):
            page = Page(resolve(INDEX, entry[2]), entry[1], entry[3] or "", part, section)
            pages += [page, *(_list_folder(root, page) if page.is_folder else ())]
    return pages


def _list_folder(root: Path, index: Page) -> Iterator[Page]:
    text = (root / index.path).read_text("utf-8")
    targets = [resolve(index.path, target) for _, target in find_links(text)]
    for path in dict.fromkeys(target.partition("#")[0] for target in targets):
        if posixpath.dirname(path) == posixpath.dirname(index.path) and path != index.path and path.endswith(".md"):
            title = read_title((root / path).read_text("utf-8"))
            yield Page(path, title, "", index.part, index.section, index.path)


def read_title(text: str) -> str:
    """Return the heading of a page as plain text."""
    (title,) = re.findall(r"^# (.+)$", text, re.MULTILINE)[:1]
    return re.sub(r"[`*]", "", title)


def resolve(page: str, target: str) -> str:
    """Return the path in the repository that a link of a page leads to, with its anchor."""
    path, mark, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page) + mark + anchor


def is_internal(target: str) -> bool:
    return not re.match(r"[a-z]+:|/", target)


def find_links(text: str) -> list[tuple[str, str]]:
    """Return the links to other files and sections, as pairs of text and target; not those in code."""
    lines = [re.sub(r"`[^`]*`", "", line) for line in split_prose(text)[::2]]
    return [link for link in LINK.findall("\n".join(lines)) if is_internal(link[1])]


def split_prose(text: str) -> list[str]:
    """Split a page into prose and blocks of code, alternately, beginning with prose."""
    pieces, fenced = [""], ""
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line)
        if fence and not fenced:
            pieces.append(line)
            fenced = fence[1]
        elif fence and fence[1] == fenced:
            pieces[-1] += line
            pieces.append("")
            fenced = ""
        else:
            pieces[-1] += line
    return pieces


def slugify(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.replace("`", "")).strip().lower().replace(" ", "-")


def list_anchors(text: str) -> list[str]:
    """Return the anchors of a page: of its headings, and those that are set beside them."""
    prose = "".join(split_prose(text)[::2])
    headings = [slugify(heading) for heading in re.findall(r"^#+ (.+?)\s*$", prose, re.MULTILINE)]
    return [*headings, *({*re.findall(r'<a id="([^"]+)">', prose)} - {*headings})]
