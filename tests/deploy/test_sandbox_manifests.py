"""The manifests of sandbox workers: they agree with each other, with those of the servers and with the command, and the
command runs code under the restrictions of the pod.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon.cli.sandbox_worker import sandbox_worker
from tests.deploy.test_manifests import DOCKERFILE, KUBERNETES, get_container, load_documents, load_manifest
from tests.support.paths import ROOT
from tests.support.sandboxes import LIMITS, WORKER_KEY, make_pool, run_code

FOLDER = KUBERNETES / "sandbox"
LABELS = {"app.kubernetes.io/name": "sandbox-worker"}
Json = dict[str, Any]


def load_one(name: str) -> Json:
    return load_documents(FOLDER / f"{name}.yaml")[0]


def get_pod() -> Json:
    found: Json = load_one("daemonset")["spec"]["template"]["spec"]
    return found


def get_worker() -> Json:
    found: Json = get_pod()["containers"][0]
    return found


def parse_arguments() -> Json:
    """Return the values of the arguments, which must be options of the command."""
    name, *arguments = get_worker()["args"]
    assert name == sandbox_worker.name
    return sandbox_worker.make_context(name, arguments).params


def test_every_manifest_is_applied_and_selects_the_same_pods() -> None:
    existing = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml", "secret.example.yaml"}
    assert {*load_one("kustomization")["resources"]} == existing | {"secret.yaml"}
    assert load_one("daemonset")["spec"]["template"]["metadata"]["labels"] == LABELS
    assert load_one("daemonset")["spec"]["selector"]["matchLabels"] == LABELS
    assert load_one("service")["spec"]["selector"] == LABELS
    assert load_one("kustomization")["namespace"] == load_one("namespace")["metadata"]["name"]


def test_the_arguments_are_options_of_the_command_and_name_what_is_mounted() -> None:
    values = parse_arguments()
    port = get_worker()["ports"][0]
    assert values["listen"] == f"0.0.0.0:{port['containerPort']}"
    assert load_one("service")["spec"]["ports"][0] == {
        "name": port["name"], "port": port["containerPort"], "targetPort": port["name"],
    }  # fmt: skip
    mounts = {entry["name"]: entry["mountPath"] for entry in get_worker()["volumeMounts"]}
    assert values["sandbox_key_file"] == f"{mounts['keys']}/keys"
    assert get_pod()["volumes"][0]["secret"]["secretName"] == load_one("secret.example")["metadata"]["name"]
    assert [*load_one("secret.example")["stringData"]] == ["keys"]
    assert values["sandbox_folder"].startswith(f"{mounts['work']}/")
    containers = int(values["sandbox_max_containers"])
    assert int(get_worker()["resources"]["limits"]["memory"].removesuffix("Gi")) > containers
    assert int(get_pod()["volumes"][1]["emptyDir"]["sizeLimit"].removesuffix("Gi")) > containers
    tag = get_container()["image"].partition(":")[2]
    assert get_worker()["image"] == f"antiphon-sandbox:{tag}"
    assert "FROM server AS sandbox-worker\n" in DOCKERFILE


def test_the_servers_are_told_the_address_of_the_service_which_has_that_of_every_pod() -> None:
    text = (FOLDER / "kustomization.yaml").read_text("utf-8")
    lines = dict(re.findall(r'^#   (\w+) = "(.+)"$', text, re.MULTILINE))
    service, namespace = load_one("service"), load_one("namespace")["metadata"]["name"]
    port = service["spec"]["ports"][0]["port"]
    assert lines.pop("sandbox_url") == f"http://{service['metadata']['name']}.{namespace}:{port}"
    assert [*lines] == ["sandbox_key_file"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_nothing_leaves_the_pods_and_only_servers_reach_them() -> None:
    policy = load_one("networkpolicy")["spec"]
    assert (policy["podSelector"], policy["policyTypes"], policy["egress"]) == ({}, ["Ingress", "Egress"], [])
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": get_worker()["ports"][0]["name"]}]
    (source,) = rule["from"]
    assert source["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": load_manifest("namespace")["metadata"]["name"]
    }
    assert source["podSelector"]["matchLabels"] == load_manifest("service")["spec"]["selector"]
    allowed = str(load_manifest("networkpolicy")["spec"]["egress"])
    assert load_one("namespace")["metadata"]["name"] in allowed


def test_the_pod_has_no_token_no_privileges_and_limits() -> None:
    pod, worker = get_pod(), get_worker()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == load_manifest("deployment")["spec"]["template"]["spec"]["securityContext"]
    assert worker["securityContext"] == get_container()["securityContext"]
    assert worker["securityContext"]["readOnlyRootFilesystem"] is True
    assert worker["resources"]["limits"].keys() == {"cpu", "memory", "ephemeral-storage"}
    assert parse_arguments()["sandbox"] == "landlock"
    assert "env" not in worker


def test_the_probes_use_paths_of_the_worker() -> None:
    paths = {get_worker()[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness", "startup")}
    source = (ROOT / "src/antiphon/sandbox/gateway.py").read_text("utf-8")
    assert all(f'"{path}"' in source for path in paths)


# The volumes and the user of the pod, in a mount namespace of its own; everything else is read-only.
_POD_SCRIPT = """
set -e
mount -t tmpfs tmpfs /srv; chgrp 10001 /srv; chmod 2777 /srv
mount -t tmpfs tmpfs /mnt; printf %s "$KEY" > /mnt/keys; chgrp 10001 /mnt/keys; chmod 0440 /mnt/keys
mount -t tmpfs tmpfs /var/tmp; chmod 1777 /var/tmp
mount -o remount,bind,ro /
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
    env -i PATH=/usr/bin PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$MODULES" /usr/bin/python3 -m antiphon "$@"
"""
_MODULES = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
_CHECK = "import sys, msgspec, click; assert sys.version_info[:2] == {}"


@contextmanager
def run_pod() -> Iterator[str]:
    """The command of the pod with its arguments, but for paths and the port. Yields its address."""
    values = {"--listen": "127.0.0.1:0", "--sandbox-key-file": "/mnt/keys", "--sandbox-folder": "/srv/sandbox"}
    options = [argument.partition("=") for argument in get_worker()["args"][1:]]
    arguments = [f"{flag}={values.get(flag, value)}" for flag, _, value in options]
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", _POD_SCRIPT, "sh", "sandbox-worker", *arguments],
        env={"PATH": os.environ["PATH"], "KEY": WORKER_KEY, "MODULES": ":".join(_MODULES)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "://" in line, line + process.stdout.read()
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _can_be_a_pod() -> bool:
    """Whether this user may mount, and another one has an interpreter that can import the server's packages."""
    commands = (
        ["unshare", "-m", "true"],
        ["setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups", "env", "-i",
         f"PYTHONPATH={':'.join(_MODULES)}", "/usr/bin/python3", "-c", _CHECK.format((*sys.version_info[:2],))],
    )  # fmt: skip
    return all(
        shutil.which(command[0]) and subprocess.run(command, capture_output=True).returncode == 0
        for command in commands
    )


@pytest.mark.anyio
@pytest.mark.skipif(not _can_be_a_pod(), reason="permission: this user may not mount, or others have no interpreter")
async def test_the_worker_runs_code_with_the_user_and_the_volumes_of_the_pod() -> None:
    with run_pod() as url:
        pool = make_pool(url)
        try:
            await pool.start("c", LIMITS)
            record = await run_code(pool, "import os\nopen('/mnt/data/a', 'w').write('x'), os.getuid()")
            assert record.stdout == "(1, 10001)\n"
            assert (await pool.status()).level == "landlock"
        finally:
            await pool.close()
