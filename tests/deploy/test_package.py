"""The published packages: their bytes, their metadata, and a server from the wheel in an environment of its own.

Their dependencies are those of the tests, since nothing is downloaded here; `make release-check` installs them too.
"""

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.paths import ROOT
from tools.release_check import ask_server, build_packages, check_reproducible

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NOT_FOR_SERVERS = {"all", "testing"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build_packages(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def read_metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def make_environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with the wheel, which finds the packages of this one, and return its programs.

    Links of editable packages are not followed there, so the checkout is not found.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    )
    (Path(own.stdout.strip()) / "shared.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", wheel], check=True, timeout=200)
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.shows("I4.4")
def test_packages_have_the_same_bytes_in_every_build(dist: Path) -> None:
    check_reproducible(dist)


@pytest.mark.slow
@pytest.mark.shows("I4.4")
def test_the_wheel_serves_in_an_environment_of_its_own(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    programs = make_environment(tmp_path / "env", wheel)
    show = "import antiphon; from importlib.metadata import version; print(version('antiphon'), antiphon.__file__)"
    ran = subprocess.run([programs / "python", "-c", show], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    version, path = ran.stdout.split()
    assert version == PROJECT["version"]
    assert path.startswith(str(tmp_path))
    ask_server(programs, tmp_path)


def test_the_wheel_has_what_is_not_python(wheel: Path) -> None:
    sources = ROOT / "src"
    with ZipFile(wheel) as archive:
        packaged = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for path in (sources / "antiphon").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert packaged == {path.relative_to(sources).as_posix() for path in files}
    assert "antiphon/py.typed" in packaged


def test_the_extra_all_is_everything_that_a_server_can_use() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert {*re.split(r"[\[\],]", everything)[1:-1]} == extras.keys() - NOT_FOR_SERVERS - {"openvino"}  # 200 MB


@pytest.mark.parametrize("page", ["docs/start/install.md", "docs/versions.md"])
def test_all_extras_are_documented(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert [extra for extra in PROJECT["optional-dependencies"] if f"`{extra}`" not in text] == []


def test_uvloop_is_required_only_where_it_exists(wheel: Path) -> None:
    required = read_metadata(wheel).get_all("Requires-Dist") or []
    (line,) = [line for line in required if line.startswith("uvloop")]
    assert line.endswith("; sys_platform != 'win32' and platform_python_implementation == 'CPython'")


def test_the_version_is_that_of_the_project_wherever_it_is_written() -> None:
    files = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "docs").rglob("*.md")]
    tags = [
        (path.name, tag)
        for path in files
        for tag in re.findall(r"antiphon(?:-sandbox)?:(\d+\.\d+\.\d+)", path.read_text("utf-8"))
    ]
    assert tags
    assert {tag for _, tag in tags} == {PROJECT["version"]}, tags
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["version"]
