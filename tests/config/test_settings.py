"""Config: settings by area, reachable by their names."""

import pytest
from msgspec import Struct
from msgspec.structs import fields

from antiphon.config import Config
from antiphon.config.settings import fields_by_name
from antiphon.limits import Limits


def test_a_setting_is_set_in_its_area_by_name() -> None:
    config = Config.from_settings(port=0, limit_body_bytes=1000, web_search_url="searxng+https://search", config=None)
    assert (config.server.port, config.limits.body_bytes) == (0, 1000)
    assert config.web_search.url == "searxng+https://search"
    assert config.storage == Config().storage


def test_a_copy_changes_only_the_named_settings() -> None:
    config = Config.from_settings(port=0, engine="fake")
    changed = config.with_settings(engine="vllm://gpu", limits=Limits(body_bytes=1000))
    assert (changed.server.port, changed.inference.engine, changed.limits.body_bytes) == (0, "vllm://gpu", 1000)
    assert config.inference.engine == "fake"


def test_every_setting_is_readable_by_its_name() -> None:
    config = Config.from_settings(port=0, quota_requests_per_minute=5, url="http://127.0.0.1:1")
    assert [config.get(name) for name in ("port", "quota_requests_per_minute", "url")] == [0, 5, "http://127.0.0.1:1"]
    for name in fields_by_name():
        config.get(name)


def test_an_unknown_setting_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="prot"):
        Config.from_settings(prot=0)


def test_no_two_areas_have_a_setting_of_the_same_name() -> None:
    structs = [row.type for row in fields(Config) if isinstance(row.type, type) and issubclass(row.type, Struct)]
    count = sum(len(fields(struct)) for struct in structs) + len(fields(Config)) - len(structs)
    assert len(fields_by_name()) == count


def test_a_config_in_a_log_line_shows_no_key() -> None:
    text = repr(Config.from_settings(api_key=("secret",), engine_key="secret"))
    assert "secret" not in text
    assert "port=8000" in text
