"""The types in the comments of the page's files are checked by the TypeScript compiler."""

import shutil
from pathlib import Path

import pytest

from antiphon.transport.operating.page import FOLDER
from tests.support.npm import install_packages, run_node

pytestmark = pytest.mark.needs("node")

HERE = Path(__file__).parent / "node"


def test_the_types_of_the_page_are_consistent(tmp_path: Path) -> None:
    modules = install_packages(HERE) / "node_modules"
    shutil.copy(HERE / "tsconfig.json", tmp_path)
    shutil.copytree(FOLDER, tmp_path / "ui")
    shutil.copy(HERE / "lit-html.d.ts", tmp_path / "ui" / "vendor")
    shutil.copy(HERE / "signals-core.d.ts", tmp_path / "ui" / "vendor")
    assert run_node(str(modules / "typescript" / "bin" / "tsc"), "-p", ".", folder=tmp_path) == ""
