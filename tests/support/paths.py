"""Folders that tests read, so that no test depends on how deep its own folder is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
RECORDINGS = TESTS / "recordings"  # requests of real clients
TLS = TESTS / "engines" / "http" / "tls"  # a certificate for localhost
