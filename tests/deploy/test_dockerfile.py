"""The Dockerfile, checked without Docker: its build steps run in temporary folders as far as possible, and its health
check runs against a real server.
"""

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
from tests.support.server_process import run_server

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
TIMEOUT_SECONDS = 500.0


def get_instructions(instruction: str) -> list[str]:
    """Return the arguments of every such instruction, each joined into one line."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [" ".join(line.split()[1:]) for line in joined.splitlines() if line.startswith(f"{instruction} ")]


def get_health_check() -> list[str]:
    found = re.search(r"CMD (\[.+\])$", get_instructions("HEALTHCHECK")[0])
    assert found
    command: list[str] = json.loads(found[1])
    return command


@pytest.mark.shows("I.8")
def test_copied_files_exist_and_are_not_excluded_by_dockerignore() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split("\n")
    for line in get_instructions("COPY"):
        if line.startswith("--from"):
            continue
        for source in shlex.split(line)[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_stages_are_defined_before_they_are_used() -> None:
    stages: set[str] = set()
    for line in (line for line in DOCKERFILE.splitlines() if line.startswith(("FROM ", "COPY --from="))):
        tokens = line.replace("=", " ").split()
        source = tokens[2] if tokens[0] == "COPY" else tokens[1]
        assert source in {*stages, "${PYTHON}"}, line
        if "AS" in tokens:
            stages.add(tokens[-1])
    assert DOCKERFILE.rstrip().splitlines()[-1] == "FROM server"


def test_the_image_runs_as_an_unprivileged_user_and_writes_only_to_its_volume() -> None:
    assert get_instructions("USER") == ["10001:10001"]
    assert get_instructions("VOLUME") == ["/data"]
    assert "XDG_DATA_HOME=/data" in get_instructions("ENV")[1]


def test_the_health_check_succeeds_only_while_the_server_runs() -> None:
    command = [sys.executable, *get_health_check()[1:]]
    with run_server("--engine", "fake", "--host", "127.0.0.1", "--api-key", "k" * 24) as server:
        environment = {**os.environ, "ANTIPHON_PORT": str(server.port)}
        assert subprocess.run(command, env=environment, timeout=30).returncode == 0
    assert subprocess.run(command, env=environment, timeout=30, capture_output=True).returncode != 0


# Runs in its own mount namespace: everything is read-only except the two folders that the image and the manifests make
# writable.
_READ_ONLY_SCRIPT = """
set -e
mount --bind "$1" /opt
mount -t tmpfs tmpfs /srv
mount -t tmpfs tmpfs /tmp
mount -o remount,bind,ro /opt
mount -o remount,bind,ro /
if touch /root/written 2>/dev/null; then exit 9; fi
cd /srv
"$2" -m antiphon serve --engine fake --port 0 --log-format json 2> /srv/server.log &
for _ in $(seq 300); do grep -q listening /srv/server.log && break; sleep 0.1; done
"$2" - <<'END'
import json, re, urllib.request as web
address = re.search(r'"address":"(http[^"]+)"', open("/srv/server.log").read())[1]
body = json.dumps({"model": "fake", "input": "hi"}).encode()
request = web.Request(address + "/v1/responses", body, {"content-type": "application/json"})
made = web.urlopen(request, timeout=20).read()
assert web.urlopen(address + "/v1/responses/" + json.loads(made)["id"], timeout=20).read() == made
END
kill -TERM $!
wait $!
ls /srv/antiphon/antiphon.db
"""


def _can_mount() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="permission: this user may not mount anything")
def test_a_server_writes_only_to_its_data_folder_and_tmp() -> None:
    python = Path(sys.executable)
    if python.is_relative_to(ROOT):  # which may be in /tmp, over which a tmpfs is mounted
        python = "/opt" / python.relative_to(ROOT)
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "XDG_DATA_HOME": "/srv"}
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", _READ_ONLY_SCRIPT, "sh", str(ROOT), str(python)],
        env={**environment, "PYTHONPATH": "/opt/src"}, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "/srv/antiphon/antiphon.db\n"), ran.stderr


@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.skipif(not os.environ.get("TEST_IMAGE"), reason="download: set TEST_IMAGE=1 to run it")
def test_the_build_steps_produce_a_working_server(tmp_path: Path) -> None:
    """Runs the steps of the build stage, with temporary folders in place of those of the image."""
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
            step.replace("/opt/antiphon", str(image)), shell=True, check=True, cwd=tmp_path, timeout=TIMEOUT_SECONDS,
            env={**os.environ, "PATH": path, "PYTHONPATH": ""},
        )  # fmt: skip
    environment = {"PATH": f"{image}/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [image / "bin/antiphon", "version"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert re.fullmatch(r"antiphon \d+\.\d+\.\d+\n", ran.stdout), ran.stderr
    doctor = [str(image / "bin/antiphon"), "doctor", "--engine", "fake", "--port", "0", "--store", "memory"]
    ran = subprocess.run(doctor, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout
    assert "not installed" not in ran.stdout
    assert not [*(image / "lib").glob("python*/site-packages/pip*")]
