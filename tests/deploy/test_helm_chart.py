"""The Helm chart: it renders the manifests of deploy/kubernetes, refuses invalid values, and its options are valid."""

import subprocess
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the stubs are a separate package

from tests.deploy.test_manifests import KUBERNETES, load_documents
from tests.plugins.services import find_helm
from tests.support.paths import ROOT

pytestmark = pytest.mark.needs("helm")
CHART = ROOT / "deploy" / "helm" / "antiphon"
SECRET = load_documents(KUBERNETES / "secret.example.yaml")[0]["stringData"]
WITH_SECRET = {
    "secret.apiKeys": SECRET["api-keys"],
    "secret.store": SECRET["store"],
    "secret.live": SECRET["live"],
}

Json = dict[str, Any]


def run_helm(values: dict[str, str], release: str = "antiphon") -> subprocess.CompletedProcess[str]:
    flags = [f"--set={name}={value.replace(',', chr(92) + ',')}" for name, value in values.items()]
    command = [str(find_helm()), "template", release, str(CHART), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def render_chart(values: dict[str, str], release: str = "antiphon") -> dict[str, Json]:
    """Render the chart; return its objects by kind."""
    result = run_helm(values, release)
    assert result.returncode == 0, result.stderr
    objects = [entry for entry in yaml.safe_load_all(result.stdout) if entry]
    assert len({entry["kind"] for entry in objects}) == len(objects)
    return {entry["kind"]: entry for entry in objects}


def drop_chart_labels(value: Any) -> Any:
    """Remove the labels that identify a release, and the defaults of Kubernetes that the chart writes out."""
    if isinstance(value, list):
        return [*map(drop_chart_labels, value)]
    if not isinstance(value, dict):
        return value
    found = {name: drop_chart_labels(entry) for name, entry in value.items()}
    for name in ("instance", "version", "managed-by"):
        found.pop(f"app.kubernetes.io/{name}", None)
    for name in ("helm.sh/chart", "imagePullPolicy"):
        found.pop(name, None)
    if found.get("type") == "ClusterIP":
        del found["type"]
    return found


def drop_comments(toml: str) -> list[str]:
    return [line for line in toml.splitlines() if line and not line.startswith("#")]


def test_the_defaults_render_the_plain_manifests() -> None:
    rendered = drop_chart_labels(render_chart(WITH_SECRET))
    files = ("deployment", "configmap", "service", "poddisruptionbudget", "networkpolicy", "secret.example")
    for name in files:
        [plain] = load_documents(KUBERNETES / f"{name}.yaml")
        found = rendered.pop(plain["kind"])
        plain["metadata"].pop("labels", None)
        found["metadata"].pop("labels")
        if name == "configmap":
            for entry in (plain, found):
                entry["data"] = drop_comments(entry["data"]["antiphon.toml"])
        assert found == plain
    assert rendered == {}


def test_all_options_render_objects_that_select_the_pods_of_the_release() -> None:
    options = {
        "secret.existing": "mine",
        "ingress.enabled": "true",
        "ingress.tlsSecret": "certificate",
        **{f"monitoring.{name}": "true" for name in ("podMonitor", "rules")},
        "monitoring.keySecret": "metrics-key",
        "networkPolicy.enabled": "false",
    }
    rendered = render_chart(options, "blue")
    assert rendered.keys() == {
        *("Deployment", "ConfigMap", "Service", "PodDisruptionBudget", "Ingress", "PodMonitor", "PrometheusRule")
    }
    assert {entry["metadata"]["name"] for entry in rendered.values()} == {"blue-antiphon"}
    labels = rendered["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        assert rendered[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert rendered["Service"]["spec"]["selector"].items() <= labels.items()
    assert "'name': 'mine'" in str(rendered["Deployment"])
    rules = yaml.safe_load((CHART / "monitoring" / "alerts.yaml").read_text("utf-8"))
    assert rendered["PrometheusRule"]["spec"] == rules


def test_the_dashboard_is_a_config_map_for_the_sidecar_of_grafana() -> None:
    result = run_helm({"secret.existing": "mine", "monitoring.dashboard": "true"})
    [found] = [entry for entry in yaml.safe_load_all(result.stdout) if "dashboard" in entry["metadata"]["name"]]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert (
        found["data"]["antiphon.json"].strip() == (CHART / "monitoring" / "dashboard.json").read_text("utf-8").strip()
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Set secret.apiKeys"),
        ({**WITH_SECRET, "replica": "3"}, "replica"),
        ({**WITH_SECRET, "replicas": "0"}, "replicas"),
        ({**WITH_SECRET, "image.tag": "latest"}, "tag"),
        ({**WITH_SECRET, "secret.store": "/data/antiphon.db"}, "store"),
    ],
)
def test_invalid_values_are_refused_by_name(values: dict[str, str], message: str) -> None:
    result = run_helm(values)
    assert result.returncode != 0
    assert message in result.stderr
