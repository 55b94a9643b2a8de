"""The Dockerfile, without Docker: its steps are run in folders of their own as far as they can be, and its health check
asks a real server."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.server_process import serving

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
SECONDS = 500.0


def lines(word: str) -> list[str]:
    """What follows it, each on one line."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [" ".join(line.split()[1:]) for line in joined.splitlines() if line.startswith(f"{word} ")]


def health_check() -> list[str]:
    found = re.search(r"CMD (\[.+\])$", lines("HEALTHCHECK")[0])
    assert found
    command: list[str] = json.loads(found[1])
    return command


@pytest.mark.shows("I.8")
def test_what_the_image_is_made_of_is_there_and_not_kept_out() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split("\n")
    for line in lines("COPY"):
        if line.startswith("--from"):
            continue
        for source in shlex.split(line)[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_every_stage_that_is_named_comes_before() -> None:
    stages: set[str] = set()
    for line in (line for line in DOCKERFILE.splitlines() if line.startswith(("FROM ", "COPY --from="))):
        words = line.replace("=", " ").split()
        source = words[2] if words[0] == "COPY" else words[1]
        assert source in {*stages, "${PYTHON}"}, line
        if "AS" in words:
            stages.add(words[-1])
    assert DOCKERFILE.rstrip().splitlines()[-1] == "FROM server"


def test_the_server_runs_as_nobody_in_particular_and_writes_to_its_volume_alone() -> None:
    assert lines("USER") == ["10001:10001"]
    assert lines("VOLUME") == ["/data"]
    assert "XDG_DATA_HOME=/data" in lines("ENV")[1]


def test_the_health_check_asks_a_server_that_others_can_reach() -> None:
    command = [sys.executable, *health_check()[1:]]
    with serving("--engine", "fake", "--host", "127.0.0.1", "--api-key", "k" * 24) as live:
        environment = {**os.environ, "ANTIPHON_PORT": str(live.port)}
        assert subprocess.run(command, env=environment, timeout=30).returncode == 0
    assert subprocess.run(command, env=environment, timeout=30, capture_output=True).returncode != 0


# In a mount namespace of its own: everything is read only but the two folders that the image and the manifests give.
_READ_ONLY = """
set -e
mount --bind "$1" /opt
mount -t tmpfs tmpfs /srv
mount -t tmpfs tmpfs /tmp
mount -o remount,bind,ro /opt
mount -o remount,bind,ro /
if touch /root/written 2>/dev/null; then exit 9; fi
cd /srv
"$2" -m antiphon serve --engine fake --port 0 --log-format json 2> /srv/said &
for _ in $(seq 300); do grep -q listening /srv/said && break; sleep 0.1; done
"$2" - <<'END'
import json, re, urllib.request as web
address = re.search(r'"address":"(http[^"]+)"', open("/srv/said").read())[1]
body = json.dumps({"model": "fake", "input": "hi"}).encode()
asked = web.Request(address + "/v1/responses", body, {"content-type": "application/json"})
made = web.urlopen(asked, timeout=20).read()
assert web.urlopen(address + "/v1/responses/" + json.loads(made)["id"], timeout=20).read() == made
END
kill -TERM $!
wait $!
ls /srv/antiphon/antiphon.db
"""


def _may_mount() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="needs the right to mount")
@pytest.mark.skipif(ROOT.is_relative_to("/tmp"), reason="this checkout is in /tmp, over which something is mounted")
def test_a_server_writes_nowhere_but_to_its_folder_and_tmp(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "XDG_DATA_HOME": "/srv"}
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", _READ_ONLY, "sh", str(ROOT), sys.executable],
        env={**environment, "PYTHONPATH": "/opt/src"}, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "/srv/antiphon/antiphon.db\n"), ran.stderr


@pytest.mark.timeout(SECONDS)
@pytest.mark.skipif(not os.environ.get("TEST_IMAGE"), reason="installs everything from PyPI: TEST_IMAGE=1 does so")
def test_the_steps_of_the_image_give_a_server(tmp_path: Path) -> None:
    """Those of the stage that builds, with folders in place of the image's."""
    builder, image = tmp_path / "builder", tmp_path / "image"
    venv.create(builder, with_pip=True)
    for name in ("requirements", "src", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    stage = DOCKERFILE.partition(" AS build\n")[2].partition("\nFROM ")[0].replace("\\\n", " ")
    steps = [line.removeprefix("RUN ") for line in stage.splitlines() if line.startswith("RUN ")]
    assert len(steps) == 5
    path = f"{builder}/bin:{os.environ['PATH']}"
    for step in steps:
        subprocess.run(
            step.replace("/opt/antiphon", str(image)), shell=True, check=True, cwd=tmp_path, timeout=SECONDS,
            env={**os.environ, "PATH": path, "PYTHONPATH": ""},
        )  # fmt: skip
    alone = {"PATH": f"{image}/bin", "HOME": str(tmp_path)}
    ran = subprocess.run([image / "bin/antiphon", "version"], env=alone, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"antiphon \d+\.\d+\.\d+\n", ran.stdout), ran.stderr
    doctor = [str(image / "bin/antiphon"), "doctor", "--engine", "fake", "--port", "0", "--store", "memory"]
    ran = subprocess.run(doctor, env=alone, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout
    assert "not installed" not in ran.stdout
    assert not [*(image / "lib").glob("python*/site-packages/pip*")]
