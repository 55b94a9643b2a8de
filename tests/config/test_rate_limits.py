"""Quotas and shedding in the settings: flags, the environment, sections, and a table for each tenant."""

from pathlib import Path

import pytest

from antiphon.config.rate_limits import Quota, Shedding, TenantSpec
from antiphon.config.sources import load
from antiphon.errors import StartupError

FILE = """
[quota]
requests_per_minute = 600
key_tokens_per_minute = 5000

[shed]
memory = 1000000

[tenants.acme]
requests_per_minute = 0
background_queue = 3
store_max_bytes = 1000

[tenants."other.team"]
"""


def written(folder: Path, text: str) -> dict[str, str]:
    file = folder / "antiphon.toml"
    file.write_text(text)
    return {"config": str(file)}


def test_sections_and_tables_say_who_may_have_how_much(tmp_path: Path) -> None:
    config = load(written(tmp_path, FILE))
    assert config.quota == Quota(requests_per_minute=600, key_tokens_per_minute=5000)
    assert config.shed == Shedding(memory=1000000)
    assert config.tenants == {
        "acme": TenantSpec(requests_per_minute=0, background_queue=3, store_max_bytes=1000),
        "other.team": TenantSpec(),
    }


def test_flags_and_variables_say_it_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_MAX_MEMORY", "5000")
    flags = {**written(tmp_path, FILE), "quota_requests_per_minute": "7", "quota_concurrent_responses": "2"}
    config = load(flags)
    assert (config.quota.requests_per_minute, config.quota.concurrent_responses) == (7, 2)
    assert config.quota.key_tokens_per_minute == 5000
    assert config.shed.memory == 5000


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[tenants.acme]\nrequests = 3", "requests"),
        ("[tenants.acme]\nrequests_per_minute = -1", "requests_per_minute"),
        ("[quota]\nrequests_per_minute = 'many'", "quota_requests_per_minute"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(StartupError, match=named):
        load(written(tmp_path, text))
