"""docs/metrics.md: every series that a server can have, as its own registry tells."""

from itertools import groupby
from multiprocessing import Pipe

from antiphon.config import Config
from antiphon.engines.fake import FakeEngine
from antiphon.observe.multiprocess import Board
from antiphon.observe.prometheus import Counter, Family, Gauge, Histogram
from antiphon.service.operations.observability import Observing
from antiphon.stores.live.worker_limits import ParentTill
from antiphon.transport.process.supervisor import Place
from antiphon.wiring import Lifecycle, build_app

Series = Family[Counter] | Family[Histogram] | Gauge

_HEAD = """\
<!-- Made from the server's own registry by `make docs`. Do not edit. -->

# Metrics

`GET /metrics` answers in Prometheus' text format; with [keys](keys.md) it needs one with the scope `admin`.

```yaml
scrape_configs:
  - job_name: antiphon
    static_configs: [{ targets: ["127.0.0.1:8000"] }]
    authorization: { credentials_file: /etc/antiphon/metrics.key } # where there are keys
```

Names are vLLM's where it counts the same: what is `vllm:time_to_first_token_seconds` there is
`antiphon_time_to_first_token_seconds` here, and so with `num_requests_running`, `num_requests_waiting`,
`e2e_request_latency_seconds`, `request_queue_time_seconds`, `time_per_output_token_seconds`, `prompt_tokens_total`
and `generation_tokens_total`.
Labels are names of ours (routes, statuses, models, engines, tools, operations), never what a client wrote: no
tenants, keys, ids or users, and so a bounded number of series. Nothing is counted for single tokens.

With `--workers` a scrape reaches one worker and is answered for all of them: what was counted is summed, also of
workers that have died since (of one that was killed, up to its last second), so it never goes back while the parent
lives. The column *workers* says what becomes of the rest: a `sum`, the `most` or `least` that any of them says, or
`each`, with a label `worker`. Gauges of a worker that is gone, or has not stirred for 10 seconds, are left out.
"""

_TITLES = {
    "antiphon_request": "Requests and responses",
    "antiphon_queue": "Queues of models",
    "antiphon_websocket": "WebSockets",
    "antiphon_engine": "Engines",
    "antiphon_tool": "Tools",
    "antiphon_sandbox": "Tools",
    "antiphon_store": "Store",
    "antiphon_live": "Live log",
    "antiphon_leases": "Leases",
    "antiphon_egress": "Egress",
    "antiphon_trace": "Traces and the access log",
    "antiphon_access": "Traces and the access log",
    "antiphon_shedding": "Limits",
    "antiphon_pressure": "Limits",
    "antiphon_quotas": "Limits",
    "antiphon_worker": "The process",
    "process": "The process",
}
_OTHERS = "Requests and responses"


def page() -> str:
    order = [*dict.fromkeys(_TITLES.values())]
    found = sorted(_series(), key=lambda one: order.index(_title(one)))
    lines = [_HEAD]
    for title, members in groupby(found, key=_title):
        lines += [f"## {title}", "", "| series | kind | labels | workers | what |", "|---|---|---|---|---|"]
        lines += [_row(one) for one in members]
        lines.append("")
    return "\n".join(lines)


def _series() -> list[Series]:
    """Of a server that has everything."""
    config = Config(
        engine="fake", store="memory", live="redis://127.0.0.1:1", access_log="-", otlp_endpoint="http://127.0.0.1:1"
    )
    place = Place(number=1, announce=lambda address, models: None, board=Board(1), till=ParentTill(Pipe()[0]))
    life = build_app(config, FakeEngine(), place=place).lifecycle
    assert isinstance(life, Lifecycle)
    observing: Observing = life.parts.observing
    assert observing.tracer is not None
    observing.tracer.close(1.0)
    return observing.metrics.registry.families()


def _title(one: Series) -> str:
    return next((title for prefix, title in _TITLES.items() if one.name.startswith(prefix)), _OTHERS)


def _row(one: Series) -> str:
    labels = ", ".join(f"`{label}`" for label in one.labels)
    return f"| `{one.name}` | {one.kind} | {labels} | {one.joining} | {one.help} |"
