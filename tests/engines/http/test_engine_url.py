"""Parsing of engine URLs, and the startup errors for invalid ones.

Covers `engines/factory.py`.
"""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.connection import TcpAddress, UnixAddress
from antiphon.engines.factory import build_engine, build_pool
from antiphon.engines.http.engine_url import parse_engine_url
from antiphon.errors import StartupError


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "secure"),
    [
        ("vllm://gpu", "gpu:8000", 8000, "", False),
        ("vllm://gpu:9000/", "gpu:9000", 9000, "", False),
        ("vllm://10.0.0.7:9000/team/a", "10.0.0.7:9000", 9000, "/team/a", False),
        ("vllm://[::1]:9000", "[::1]:9000", 9000, "", False),
        ("vllm+http://gpu", "gpu:8000", 8000, "", False),
        ("vllm+https://gpu", "gpu:443", 443, "", True),
        ("vllm+https://gpu:8443/v1", "gpu:8443", 8443, "/v1", True),
    ],
)
def test_an_engine_url_is_parsed(url: str, host: str, port: int, path: str, secure: bool) -> None:
    found = parse_engine_url(url, 8000)
    assert (found.host, found.path) == (host, path)
    assert isinstance(found.address, TcpAddress)
    assert (found.address.port, found.address.tls is not None) == (port, secure)


def test_an_engine_may_be_on_a_unix_socket() -> None:
    assert parse_engine_url("vllm+unix:///run/vllm.sock", 8000).address == UnixAddress("/run/vllm.sock")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("vllm", "names no host; expected NAME://HOST:PORT"),
        ("fake://gpu", "is embedded: leave out the address"),
        ("vllm://", "names no host"),
        ("vllm://:8000", "names no host"),
        ("vllm://gpu:eight", "cannot be read"),
        ("vllm://gpu:99999", "cannot be read"),
        ("vllm://sk-secret@gpu", "must not contain a key"),
        ("vllm://me:sk-secret@gpu", "must not contain a key"),
        ("vllm://gpu?key=sk-secret", "may only have a host, a port and a path"),
        ("vllm://gpu#x", "may only have a host, a port and a path"),
        ("vllm://gpu/a\r\nX: y", "cannot be read|may only have a host"),
        ("vllm://gp u", "may only have a host"),
        ("vllm://gpu:0", "Port 0"),
        ("vllm://gpu:65536", "cannot be read: Port"),
        ("vllm+ftp://gpu", "scheme 'vllm\\+ftp'"),
        ("vllm+unix://run/vllm.sock", "three slashes"),
    ],
)
def test_an_invalid_url_raises_an_error_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        build_engine(Config.from_settings(engine=url))
    assert "secret" not in str(caught.value)


def test_an_unknown_engine_raises_an_error_without_the_rest_of_the_url() -> None:
    with pytest.raises(StartupError, match=r"There is no engine 'vlm'; expected .*vllm") as caught:
        build_engine(Config.from_settings(engine="vlm://sk-secret@gpu"))
    assert "secret" not in str(caught.value)


def test_the_error_for_an_http_url_suggests_an_engine_scheme() -> None:
    with pytest.raises(StartupError, match=r"There is no engine 'http'; .* Use openai://HOST:PORT for any server"):
        build_engine(Config.from_settings(engine="http://gpu:8000/v1"))


def test_an_unreadable_certificate_file_raises_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    for name in ("no.pem", "missing.pem"):
        with pytest.raises(StartupError, match=f"--engine-ca .* names .*{name}"):
            parse_engine_url("vllm+https://gpu", 8000, tmp_path / name)


def test_an_engine_is_displayed_by_its_host_or_its_socket() -> None:
    assert parse_engine_url("vllm://gpu/team", 8000).display == "gpu:8000"
    assert parse_engine_url("vllm+unix:///run/v.sock", 8000).display == "/run/v.sock"


INVALID_ENGINES = [
    ("vlm://b", "There is no engine 'vlm'"),
    ("vllm://b:x", "The URL of the engine cannot be read"),
    ("ollama://b", "The ollama engine supports chats only"),
]


@pytest.mark.parametrize(("url", "message"), INVALID_ENGINES)
def test_an_error_in_one_of_several_engines_names_its_position(url: str, message: str) -> None:
    specs = (EngineSpec(url="fake"), EngineSpec(url=url, level="tokens"))
    with pytest.raises(StartupError) as caught:
        build_pool(Config.from_settings(config=Path("mine.toml"), engines=specs))
    assert str(caught.value).startswith(f"[[engines]] in mine.toml, at [1]: {message}")
    with pytest.raises(StartupError) as caught:
        build_pool(Config.from_settings(engine=("fake", url), engine_level="tokens"))
    assert str(caught.value).startswith(f"Engine number 2: {message}")
