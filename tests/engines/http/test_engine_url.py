"""The URL of an engine, and the sentences about those that cannot be."""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.connection import TcpAddress, UnixAddress
from antiphon.engines.factory import build_pool
from antiphon.engines.http.engine_url import place
from antiphon.errors import StartupError
from antiphon.wiring import build_engine


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
def test_a_url_names_a_place(url: str, host: str, port: int, path: str, secure: bool) -> None:
    found = place(url, 8000)
    assert (found.host, found.path) == (host, path)
    assert isinstance(found.address, TcpAddress)
    assert (found.address.port, found.address.tls is not None) == (port, secure)


def test_an_engine_may_be_on_a_unix_socket() -> None:
    assert place("vllm+unix:///run/vllm.sock", 8000).address == UnixAddress("/run/vllm.sock")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("vllm", "names no host; expected NAME://HOST:PORT"),
        ("fake://gpu", "runs here: it is named without an address"),
        ("vllm://", "names no host"),
        ("vllm://:8000", "names no host"),
        ("vllm://gpu:eight", "cannot be read"),
        ("vllm://gpu:99999", "cannot be read"),
        ("vllm://sk-secret@gpu", "A key does not belong into the URL"),
        ("vllm://me:sk-secret@gpu", "A key does not belong into the URL"),
        ("vllm://gpu?key=sk-secret", "a host, a port and a path, and nothing else"),
        ("vllm://gpu#x", "a host, a port and a path, and nothing else"),
        ("vllm://gpu/a\r\nX: y", "cannot be read|nothing else"),
        ("vllm://gp u", "nothing else"),
        ("vllm://gpu:0", "Port 0"),
        ("vllm://gpu:65536", "cannot be read: Port"),
        ("vllm+ftp://gpu", "scheme 'vllm\\+ftp'"),
        ("vllm+unix://run/vllm.sock", "three slashes"),
    ],
)
def test_a_url_that_cannot_be_is_a_sentence_without_its_secrets(url: str, sentence: str) -> None:
    with pytest.raises(StartupError, match=sentence) as caught:
        build_engine(Config(engine=url))
    assert "secret" not in str(caught.value)


def test_an_unknown_engine_is_a_sentence_without_the_rest_of_the_url() -> None:
    with pytest.raises(StartupError, match=r"There is no engine 'vlm'; expected .*vllm") as caught:
        build_engine(Config(engine="vlm://sk-secret@gpu"))
    assert "secret" not in str(caught.value)


def test_a_plain_web_address_is_told_how_to_name_what_listens_there() -> None:
    with pytest.raises(StartupError, match=r"There is no engine 'http'; .* openai://HOST:PORT\."):
        build_engine(Config(engine="http://gpu:8000/v1"))


def test_a_file_of_certificates_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    for name in ("no.pem", "missing.pem"):
        with pytest.raises(StartupError, match=f"--engine-ca .* names .*{name}"):
            place("vllm+https://gpu", 8000, tmp_path / name)


def test_an_engine_is_shown_by_its_host_or_by_its_socket() -> None:
    assert place("vllm://gpu/team", 8000).shown == "gpu:8000"
    assert place("vllm+unix:///run/v.sock", 8000).shown == "/run/v.sock"


WRONG = [
    ("vlm://b", "There is no engine 'vlm'"),
    ("vllm://b:x", "The URL of the engine cannot be read"),
    ("ollama://b", "The ollama engine is asked by chats only"),
]


@pytest.mark.parametrize(("url", "sentence"), WRONG)
def test_what_is_wrong_with_one_of_several_engines_is_said_with_its_place(url: str, sentence: str) -> None:
    specs = (EngineSpec(url="fake"), EngineSpec(url=url, level="tokens"))
    with pytest.raises(StartupError) as caught:
        build_pool(Config(config=Path("mine.toml"), engines=specs))
    assert str(caught.value).startswith(f"[[engines]] in mine.toml, at [1]: {sentence}")
    with pytest.raises(StartupError) as caught:
        build_pool(Config(engine=("fake", url), engine_level="tokens"))
    assert str(caught.value).startswith(f"Of the engines, number 2: {sentence}")
