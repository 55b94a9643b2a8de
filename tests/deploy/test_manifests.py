"""The files in deploy/, checked without a container: they are well formed, name settings that exist, and agree with
each other and with the server about ports, paths, users and times.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the stubs are a separate package

from antiphon.config import Config
from antiphon.config.settings import settings
from antiphon.config.sources import load
from antiphon.transport.process.supervisor import KILL_DELAY
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
PRE_STOP_SECONDS = 5

Json = dict[str, Any]


def load_documents(path: Path) -> list[Json]:
    return [entry for entry in yaml.safe_load_all(path.read_text("utf-8")) if entry]


def load_compose() -> Json:
    return load_documents(DEPLOY / "compose.yaml")[0]


def load_manifest(name: str) -> Json:
    return load_documents(KUBERNETES / f"{name}.yaml")[0]


def get_pod_spec() -> Json:
    found: Json = load_manifest("deployment")["spec"]["template"]["spec"]
    return found


def get_container() -> Json:
    found: Json = get_pod_spec()["containers"][0]
    return found


def get_servers() -> dict[str, Json]:
    return {name: entry for name, entry in load_compose()["services"].items() if name.startswith("antiphon")}


def substitute_variables(value: str) -> str:
    """Replace variables as compose would do."""
    return re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", r"made-up-\1", value)


def load_config(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **flags: str) -> Config:
    """Load the settings with the server's own loader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load(flags)


def list_images() -> Iterator[str]:
    for entry in load_compose()["services"].values():
        yield entry["image"]
    yield get_container()["image"]
    yield re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)[0]


def test_every_image_is_pinned_by_a_tag() -> None:
    assert all(re.fullmatch(r"[a-z0-9./-]+:[\w.-]*\d[\w.-]*", image) for image in list_images()), [*list_images()]
    assert not any(image.endswith(":latest") for image in list_images())


def test_the_compose_servers_have_valid_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert len(get_servers()) == 2
    for entry in get_servers().values():
        config = load_config(
            {name: substitute_variables(str(value)) for name, value in entry["environment"].items()},
            monkeypatch,
            tmp_path,
        )
        seconds = int(entry["stop_grace_period"].removesuffix("s"))
        assert seconds >= config.server.shutdown_grace + KILL_DELAY
        assert config.storage.store_location.startswith("postgresql://")
        assert config.storage.live is not None
        assert config.server.api_key
        assert entry["read_only"] is True
        assert entry["cap_drop"] == ["ALL"]


def test_the_compose_services_refer_to_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    services = load_compose()["services"]
    environment = next(iter(get_servers().values()))["environment"]
    config = load_config(
        {name: substitute_variables(str(value)) for name, value in environment.items()}, monkeypatch, tmp_path
    )
    hosts = [
        re.split(r"[:/]", config.storage.store_location.rpartition("@")[2])[0],
        re.split(r"[:/]+", config.storage.live or "")[1],
    ]
    hosts += [spec.address.partition(":")[0] for spec in config.inference.specs]
    assert {*hosts} <= services.keys()
    caddy = (DEPLOY / "Caddyfile").read_text("utf-8")
    upstreams = re.findall(r"reverse_proxy (.+) \{", caddy)
    assert upstreams[0].split() == [f"{name}:{config.server.port}" for name in get_servers()]
    container_port = services["proxy"]["ports"][0].rpartition(":")[2]
    assert f":{container_port} {{" in caddy
    for entry in services.values():
        assert {*entry.get("depends_on", {})} <= services.keys()
        for volume in entry.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in load_compose()["volumes"] or (DEPLOY / source).exists()


def test_the_proxy_closes_idle_connections_before_the_server_does() -> None:
    found = re.search(r"keepalive (\d+)s", (DEPLOY / "Caddyfile").read_text("utf-8"))
    assert found
    assert int(found[1]) < Config().server.keepalive_seconds


def test_the_kubernetes_manifests_have_valid_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text(load_manifest("configmap")["data"]["antiphon.toml"])
    secret = load_manifest("secret.example")["stringData"]
    variables = {entry["name"]: secret[entry["valueFrom"]["secretKeyRef"]["key"]] for entry in get_container()["env"]}
    config = load_config(variables, monkeypatch, tmp_path)
    assert config.config == Path("antiphon.toml")
    assert config.server.port == get_container()["ports"][0]["containerPort"]
    assert load_manifest("service")["spec"]["ports"][0]["targetPort"] == get_container()["ports"][0]["name"]
    assert config.server.api_key_file is not None
    assert str(config.server.api_key_file) in list_mounted_files()
    assert get_container()["args"][2] in list_mounted_files()
    assert (
        get_pod_spec()["terminationGracePeriodSeconds"] >= PRE_STOP_SECONDS + config.server.shutdown_grace + KILL_DELAY
    )
    assert get_container()["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(PRE_STOP_SECONDS)]


def list_mounted_files() -> set[str]:
    """Return the paths of the files in a pod that come from a Secret or a ConfigMap."""
    mount_paths = {entry["name"]: entry["mountPath"] for entry in get_container()["volumeMounts"]}
    names = {"settings": list(load_manifest("configmap")["data"])}
    for entry in get_pod_spec()["volumes"]:
        if "secret" in entry:
            names[entry["name"]] = [item["path"] for item in entry["secret"]["items"]]
    assert {entry["name"] for entry in get_pod_spec()["volumes"]} == mount_paths.keys()
    return {f"{mount_paths[volume]}/{name}" for volume, files in names.items() for name in files}


def test_the_probes_use_the_health_endpoints() -> None:
    probes = {name: get_container()[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness", "startup")}
    assert probes == {"liveness": "/health", "readiness": "/ready", "startup": "/health"}


def test_the_pod_has_no_unneeded_privileges() -> None:
    assert get_pod_spec()["automountServiceAccountToken"] is False
    assert get_pod_spec()["securityContext"]["runAsNonRoot"] is True
    assert f"USER {get_pod_spec()['securityContext']['runAsUser']}:" in DOCKERFILE
    assert get_container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_every_manifest_is_applied_and_selects_the_same_pods() -> None:
    resources = load_manifest("kustomization")["resources"]
    existing = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml", "secret.example.yaml"}
    assert {*resources} == existing | {"secret.yaml"}
    labels = load_manifest("deployment")["spec"]["template"]["metadata"]["labels"]
    assert load_manifest("deployment")["spec"]["selector"]["matchLabels"] == labels
    assert load_manifest("service")["spec"]["selector"] == labels
    assert load_manifest("poddisruptionbudget")["spec"]["selector"]["matchLabels"] == labels
    assert load_manifest("networkpolicy")["spec"]["podSelector"]["matchLabels"] == labels


def test_mentioned_flags_and_variables_are_settings() -> None:
    setting_names = {row.flag for row in settings().values()} | {row.variable for row in settings().values()}
    texts = [DOCKERFILE, *(path.read_text("utf-8") for path in DEPLOY.rglob("*.yaml"))]
    named = {name for text in texts for name in re.findall(r"ANTIPHON_[A-Z_]+[A-Z]", text)}
    assert named
    assert named <= setting_names
    for page in ("deployment", "sizing", "upgrades", "security"):
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        used = {*re.findall(r"`(--[a-z][a-z-]+)", text)}
        assert used <= setting_names | OTHER_FLAGS, used - setting_names - OTHER_FLAGS


# Flags of other programs, and flags of Antiphon's commands that are not settings.
OTHER_FLAGS = {"--read-only", "--stop-timeout", "--target", "--wait", "--json", "--tenant", "--require-hashes", "--set"}


def test_the_systemd_unit_agrees_with_the_server() -> None:
    unit = (DEPLOY / "systemd" / "antiphon.service").read_text("utf-8")
    values = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"[A-Z]\w+=", line))
    assert int(values["TimeoutStopSec"]) >= Config().server.shutdown_grace + KILL_DELAY
    variables = {pair.split("=")[0] for pair in values["Environment"].split()}
    assert variables - {"XDG_CACHE_HOME"} <= {row.variable for row in settings().values()}
    assert f"/var/lib/{values['StateDirectory']}/" in values["Environment"]
