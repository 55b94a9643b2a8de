"""What clients of the files drill know: files, vector stores, and which file was added to which store.

What was requested and not answered may have happened or not; the next server tells.
"""

import hashlib
import random
import string
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drills.harness.client import Answer

_MAX_BYTES = 3_000_000
_MAX_WORDS = 400
Attachment = tuple[str, str]  # vector store, file


class FileLedger:
    def __init__(self) -> None:
        self.stored: dict[str, str] = {}  # id → name, which is the digest of the content
        self.deleting: set[str] = set()  # requested, not acknowledged
        self.deleted: set[str] = set()
        self.completing: dict[str, tuple[list[str], str]] = {}  # upload → parts, name; likewise
        self.stores: set[str] = set()  # vector stores
        self.deleting_stores: set[str] = set()  # requested, not acknowledged
        self.deleted_stores: set[str] = set()
        self.attached: set[Attachment] = set()
        self.detaching: set[Attachment] = set()  # requested, not acknowledged
        self.detached: set[Attachment] = set()
        self.texts: dict[str, str] = {}  # name → content, of files that can be indexed
        self.acknowledged = 0
        self.problems: list[str] = []
        self._in_use: Counter[str | Attachment] = Counter()
        self._repeated = [random.randbytes(size) for size in (1, 70_000, 1_200_000)]

    def make_content(self) -> tuple[str, bytes]:
        """Return a name and content: text, bytes, or sometimes the content of another file, which they share."""
        text = ""
        if random.random() < 0.5:
            text = _make_text()
            content = text.encode()
        elif random.random() < 0.3:
            content = random.choice(self._repeated)
        else:
            content = random.randbytes(int(_MAX_BYTES ** random.random()))
        name = hashlib.sha256(content).hexdigest()
        if text:
            self.texts[name] = text
        return name, content

    def accept(self, answer: Answer) -> dict[str, Any]:
        """Return the body of an answer. One with another status than 200 is a problem, and then EOFError is raised."""
        if answer.status != 200:
            self.problems.append(f"a request was answered with {answer.status}: {answer.body[:300]!r}")
            raise EOFError
        self.acknowledged += 1
        return answer.json()

    @contextmanager
    def use(self, store: str, *files: str) -> Iterator[None]:
        """Keep other clients from deleting a vector store and these files, and from removing them from it."""
        used: list[str | Attachment] = [store, *files, *((store, file) for file in files)]
        self._in_use.update(used)
        try:
            yield
        finally:
            self._in_use.subtract(used)

    def find_unused(self) -> list[str]:
        """Return files that can be deleted."""
        return [file for file in self.stored.keys() - self.deleting if not self._in_use[file]]

    def find_unused_stores(self) -> list[str]:
        return [store for store in self.stores - self.deleting_stores if not self._in_use[store]]

    def find_texts(self) -> list[str]:
        """Return files that can be indexed."""
        return [file for file in self.stored.keys() - self.deleting if self.stored[file] in self.texts]

    def find_text(self, file: str) -> str:
        return self.texts[self.stored[file]]

    def find_attached(self) -> list[Attachment]:
        """Return files of vector stores that no client adds or removes now."""
        stores, files = self.stores - self.deleting_stores, self.stored.keys() - self.deleting
        return [
            (store, file)
            for store, file in self.attached - self.detaching
            if store in stores and file in files and not self._in_use[store, file]
        ]


def _make_text() -> str:
    """Return words that begin with one which is in no other file."""
    tag = "".join(random.choices(string.ascii_lowercase, k=12))
    return " ".join(f"{tag}-{number}" for number in range(random.randint(3, _MAX_WORDS)))


def get_tag(text: str) -> str:
    """Return the word that is in every chunk of this text, and in no other one."""
    return text.partition("-")[0]
