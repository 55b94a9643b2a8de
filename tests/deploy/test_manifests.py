"""What deploy/ says, as far as it can be checked without a container: it is well formed, names settings that exist, and
agrees with itself and with the server about ports, paths, users and times."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # its types are another package

from antiphon.config import Config
from antiphon.config.sources import load, settings
from antiphon.transport.process.supervisor import LAST_WORDS
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
PRE_STOP = 5

Json = dict[str, Any]


def documents(path: Path) -> list[Json]:
    return [one for one in yaml.safe_load_all(path.read_text("utf-8")) if one]


def compose() -> Json:
    return documents(DEPLOY / "compose.yaml")[0]


def manifest(name: str) -> Json:
    return documents(KUBERNETES / f"{name}.yaml")[0]


def pod() -> Json:
    found: Json = manifest("deployment")["spec"]["template"]["spec"]
    return found


def container() -> Json:
    found: Json = pod()["containers"][0]
    return found


def servers() -> dict[str, Json]:
    return {name: one for name, one in compose()["services"].items() if name.startswith("antiphon")}


def plain(value: str) -> str:
    """As compose would fill it in."""
    return re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", r"made-up-\1", value)


def read(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **flags: str) -> Config:
    """By the server's own reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load(flags)


def images() -> Iterator[str]:
    for one in compose()["services"].values():
        yield one["image"]
    yield container()["image"]
    yield re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)[0]


def test_every_image_is_pinned_by_a_tag() -> None:
    assert all(re.fullmatch(r"[a-z0-9./-]+:[\w.-]*\d[\w.-]*", image) for image in images()), [*images()]
    assert not any(image.endswith(":latest") for image in images())


def test_the_servers_of_the_compose_file_have_settings_that_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert len(servers()) == 2
    for one in servers().values():
        config = read({name: plain(str(value)) for name, value in one["environment"].items()}, monkeypatch, tmp_path)
        seconds = int(one["stop_grace_period"].removesuffix("s"))
        assert seconds >= config.shutdown_grace + LAST_WORDS
        assert config.store_place.startswith("postgresql://")
        assert config.live is not None
        assert config.api_key
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]


def test_the_services_of_the_compose_file_find_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    services = compose()["services"]
    environment = next(iter(servers().values()))["environment"]
    config = read({name: plain(str(value)) for name, value in environment.items()}, monkeypatch, tmp_path)
    hosts = [re.split(r"[:/]", config.store_place.rpartition("@")[2])[0], re.split(r"[:/]+", config.live or "")[1]]
    hosts += [spec.place.partition(":")[0] for spec in config.specs]
    assert {*hosts} <= services.keys()
    caddy = (DEPLOY / "Caddyfile").read_text("utf-8")
    assert re.search(r"reverse_proxy (.+) \{", caddy)[1].split() == [f"{name}:{config.port}" for name in servers()]  # type: ignore[index]
    inside = services["proxy"]["ports"][0].rpartition(":")[2]
    assert f":{inside} {{" in caddy
    for one in services.values():
        assert {*one.get("depends_on", {})} <= services.keys()
        for volume in one.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in compose()["volumes"] or (DEPLOY / source).exists()


def test_the_proxy_closes_idle_connections_before_the_server_does() -> None:
    found = re.search(r"keepalive (\d+)s", (DEPLOY / "Caddyfile").read_text("utf-8"))
    assert found
    assert int(found[1]) < Config().keepalive_seconds


def test_the_settings_of_the_manifests_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text(manifest("configmap")["data"]["antiphon.toml"])
    secret = manifest("secret.example")["stringData"]
    variables = {one["name"]: secret[one["valueFrom"]["secretKeyRef"]["key"]] for one in container()["env"]}
    config = read(variables, monkeypatch, tmp_path)
    assert config.config == Path("antiphon.toml")
    assert config.port == container()["ports"][0]["containerPort"]
    assert manifest("service")["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]
    assert config.api_key_file is not None
    assert str(config.api_key_file) in mounted()
    assert container()["args"][2] in mounted()
    assert pod()["terminationGracePeriodSeconds"] >= PRE_STOP + config.shutdown_grace + LAST_WORDS
    assert container()["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(PRE_STOP)]


def mounted() -> set[str]:
    """Paths of the files in a pod that come from a Secret or a ConfigMap."""
    places = {one["name"]: one["mountPath"] for one in container()["volumeMounts"]}
    names = {"settings": list(manifest("configmap")["data"])}
    for one in pod()["volumes"]:
        if "secret" in one:
            names[one["name"]] = [item["path"] for item in one["secret"]["items"]]
    assert {one["name"] for one in pod()["volumes"]} == places.keys()
    return {f"{places[volume]}/{name}" for volume, files in names.items() for name in files}


def test_the_probes_ask_what_the_server_answers() -> None:
    probes = {name: container()[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness", "startup")}
    assert probes == {"liveness": "/health", "readiness": "/ready", "startup": "/health"}


def test_a_pod_may_do_nothing_that_a_server_does_not_need() -> None:
    assert pod()["automountServiceAccountToken"] is False
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert f"USER {pod()['securityContext']['runAsUser']}:" in DOCKERFILE
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_every_manifest_is_applied_and_chooses_the_same_pods() -> None:
    resources = manifest("kustomization")["resources"]
    there = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml", "secret.example.yaml"}
    assert {*resources} == there | {"secret.yaml"}
    labels = manifest("deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("service")["spec"]["selector"] == labels
    assert manifest("poddisruptionbudget")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("networkpolicy")["spec"]["podSelector"]["matchLabels"] == labels


def test_flags_and_variables_that_the_files_name_are_settings() -> None:
    known = {row.flag for row in settings().values()} | {row.variable for row in settings().values()}
    texts = [DOCKERFILE, *(path.read_text("utf-8") for path in DEPLOY.rglob("*.yaml"))]
    named = {name for text in texts for name in re.findall(r"ANTIPHON_[A-Z_]+[A-Z]", text)}
    assert named
    assert named <= known
    for page in ("deployment", "sizing", "upgrades", "security"):
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        used = {*re.findall(r"`(--[a-z][a-z-]+)", text)}
        assert used <= known | NOT_OURS, used - known - NOT_OURS


# Of other programs, and of our commands that are no settings.
NOT_OURS = {"--read-only", "--stop-timeout", "--target", "--wait", "--json", "--tenant", "--require-hashes"}
