"""Renders docs/metrics.md: every series of the server, from its own registry."""

from itertools import groupby
from multiprocessing import Pipe

from antiphon.config import Config
from antiphon.engines.fake import FakeEngine
from antiphon.observe.multiprocess import SharedPages
from antiphon.observe.prometheus import Family
from antiphon.service.operations.observability import Observability
from antiphon.stores.live.worker_limits import ParentLimits
from antiphon.transport.process.supervisor import WorkerContext
from antiphon.wiring import ServerLifecycle, build_app

_INTRODUCTION = """\
<!-- Generated from the server's own registry by `make docs`. Do not edit. -->

# Metrics

`GET /metrics` returns the metrics of the server in Prometheus' text format. If there are [API keys](keys.md), it
requires one with the scope `admin`.

```yaml
scrape_configs:
  - job_name: antiphon
    static_configs: [{ targets: ["127.0.0.1:8000"] }]
    authorization: { credentials_file: /etc/antiphon/metrics.key } # if there are API keys
```

Metrics that vLLM has as well use its names: `vllm:time_to_first_token_seconds` is
`antiphon_time_to_first_token_seconds` here. The same applies to `num_requests_running`, `num_requests_waiting`,
`e2e_request_latency_seconds`, `request_queue_time_seconds`, `time_per_output_token_seconds`, `prompt_tokens_total` and
`generation_tokens_total`.

Labels are names that the server defines (routes, statuses, models, engines, tools, operations), never text from
clients. There are no labels for tenants, keys, ids or users, so the number of series is bounded. No metric is updated
per token.

With `--workers`, a scrape reaches one worker, which returns the metrics of all of them. Counters and histograms are
summed, including those of workers that have exited (of a killed worker up to its last second), so they do not decrease
while the parent process runs. The column *workers* states how other values are merged: `sum`, `most` for the maximum,
`least` for the minimum, or `each` for separate series with the label `worker`. Gauges of a worker that has exited, or
that has not reported for 10 seconds, are omitted.
"""

_TITLES = {
    "antiphon_request": "Requests and responses",
    "antiphon_queue": "Model queues",
    "antiphon_websocket": "WebSockets",
    "antiphon_engine": "Engines",
    "antiphon_tool": "Tools",
    "antiphon_sandbox": "Tools",
    "antiphon_store": "Store",
    "antiphon_vector": "Store",
    "antiphon_live": "Live log",
    "antiphon_leases": "Leases",
    "antiphon_egress": "Egress",
    "antiphon_trace": "Traces and the access log",
    "antiphon_access": "Traces and the access log",
    "antiphon_shedding": "Limits",
    "antiphon_pressure": "Limits",
    "antiphon_quotas": "Limits",
    "antiphon_worker": "Process",
    "process": "Process",
}
_DEFAULT_TITLE = "Requests and responses"


def render_page() -> str:
    order = [*dict.fromkeys(_TITLES.values())]
    found = sorted(collect_series(), key=lambda series: order.index(_get_title(series)))
    lines = [_INTRODUCTION]
    for title, members in groupby(found, key=_get_title):
        lines += [f"## {title}", "", "| series | type | labels | workers | description |", "|---|---|---|---|---|"]
        lines += [_render_row(series) for series in members]
        lines.append("")
    return "\n".join(lines)


def collect_series() -> list[Family]:
    """Return the series of a server with every feature enabled."""
    config = Config.from_settings(
        engine="fake", store="memory", live="redis://127.0.0.1:1", access_log="-", otlp_endpoint="http://127.0.0.1:1",
        rerank_model="fake",
    )  # fmt: skip
    worker = WorkerContext(
        number=1,
        announce=lambda address, models: None,
        shared_pages=SharedPages(1),
        shared_limits=ParentLimits(Pipe()[0]),
    )
    lifecycle = build_app(config, FakeEngine(), worker=worker).lifecycle
    assert isinstance(lifecycle, ServerLifecycle)
    observability: Observability = lifecycle.components.observability
    assert observability.tracer is not None
    observability.tracer.close(1.0)
    return observability.metrics.registry.families()


def _get_title(series: Family) -> str:
    return next((title for prefix, title in _TITLES.items() if series.name.startswith(prefix)), _DEFAULT_TITLE)


def _render_row(series: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in series.labels)
    return f"| `{series.name}` | {series.kind} | {labels} | {series.merge_mode} | {series.help} |"
