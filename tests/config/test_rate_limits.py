"""Settings of quotas and load shedding: flags, environment variables, sections, and a table for each tenant."""

from pathlib import Path

import pytest

from antiphon.config.rate_limits import QuotaSettings, SheddingSettings, TenantSpec
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


def write_config(folder: Path, text: str) -> dict[str, str]:
    file = folder / "antiphon.toml"
    file.write_text(text)
    return {"config": str(file)}


def test_sections_and_tables_set_the_limits_of_all_and_of_each_tenant(tmp_path: Path) -> None:
    config = load(write_config(tmp_path, FILE))
    assert config.quota == QuotaSettings(requests_per_minute=600, key_tokens_per_minute=5000)
    assert config.shed == SheddingSettings(memory=1000000)
    assert config.tenants == {
        "acme": TenantSpec(requests_per_minute=0, background_queue=3, store_max_bytes=1000),
        "other.team": TenantSpec(),
    }


def test_flags_and_variables_override_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_MAX_MEMORY", "5000")
    flags = {**write_config(tmp_path, FILE), "quota_requests_per_minute": "7", "quota_concurrent_responses": "2"}
    config = load(flags)
    assert (config.quota.requests_per_minute, config.quota.concurrent_responses) == (7, 2)
    assert config.quota.key_tokens_per_minute == 5000
    assert config.shed.memory == 5000


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("[tenants.acme]\nrequests = 3", "requests"),
        ("[tenants.acme]\nrequests_per_minute = -1", "requests_per_minute"),
        ("[quota]\nrequests_per_minute = 'many'", "quota_requests_per_minute"),
    ],
)
def test_an_invalid_setting_is_named(tmp_path: Path, text: str, setting: str) -> None:
    with pytest.raises(StartupError, match=setting):
        load(write_config(tmp_path, text))
