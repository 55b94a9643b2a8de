"""Folders that tests read, so that no test depends on the depth of its own folder."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
RECORDINGS = TESTS / "recordings"  # recorded requests of real clients
TLS = TESTS / "engines" / "http" / "tls"  # certificate for localhost
