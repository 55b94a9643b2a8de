"""Alert rules and the dashboard: every query names series and labels that the server has."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml  # type: ignore[import-untyped]  # the stubs are a separate package

from tests.deploy.test_helm_chart import CHART
from tools.metrics_page import collect_series

# Labels that Prometheus adds, and those of histograms and of several workers.
OTHER_LABELS = {"instance", "job", "le", "worker"}


def load_rules() -> list[dict[str, str]]:
    [group] = yaml.safe_load((CHART / "monitoring" / "alerts.yaml").read_text("utf-8"))["groups"]
    rules: list[dict[str, str]] = group["rules"]
    return rules


def list_queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in load_rules())
    dashboard = json.loads((CHART / "monitoring" / "dashboard.json").read_text("utf-8"))
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", []))
    yield from (variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query")


def list_series() -> dict[str, set[str]]:
    """Return the labels of every series of the server, histograms by their three names."""
    found: dict[str, set[str]] = {}
    for family in collect_series():
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {family.name + suffix: {*family.labels} for suffix in suffixes}
    return found


@pytest.mark.parametrize("query", [*list_queries()])
def test_every_query_names_existing_series_and_labels(query: str) -> None:
    series = list_series()
    names = re.findall(r"\b(?:antiphon|process)_\w+", query)
    assert names
    assert {*names} <= series.keys()
    matched = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query)
    grouped = [label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")]
    for label in {*matched, *grouped} - OTHER_LABELS:
        assert all(label in series[name] for name in names), label


def test_the_annotations_of_alerts_name_labels_that_the_alert_has() -> None:
    series = list_series()
    for rule in load_rules():
        names = re.findall(r"\b(?:antiphon|process)_\w+", rule["expr"])
        for label in {*re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))} - OTHER_LABELS:
            assert all(label in series[name] for name in names), (rule["alert"], label)
