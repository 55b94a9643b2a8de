"""What keeps a server from starting is one sentence and an exit code; a server that was stopped has done well."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.process import COMMAND, DEADLINE, clean, run
from tests.support.server_process import serving


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "x"], "--port is 'x'; expected a whole number from 0 to 65535."),
        (["--config", "no.toml"], "--config names no.toml, which is not a file."),
        (
            ["--engine", "steam"],
            "There is no engine 'steam'; "
            "expected fake, llamacpp, llamacpp-server, ollama, openai, ovms, sglang or vllm.",
        ),
        (
            ["--engine", "fake", "--host", "0.0.0.0"],
            "Listening on 0.0.0.0 would let others than this machine in; that needs an API key. "
            "Make one with `antiphon keys create`, give one with --api-key, or listen on 127.0.0.1.",
        ),
        (
            ["--engine", "fake", "--host", "no.such.host.invalid", "--api-key", "k"],
            "The host no.such.host.invalid is not known. Choose another with --host.",
        ),
        (
            ["--allow-origin", "app.example", "--allow-origin", "https://b"],
            "--allow-origin is 'app.example', 'https://b'; expected SCHEME://HOST:PORT, or a list.",
        ),
        (["--allow-host", "https://app"], "--allow-host is 'https://app'; expected the name of a host, or a list."),
        (["--mcp-server", "x"], "--mcp-server is 'x'; expected LABEL=URL, or a list."),
        (
            ["--engine", "fake", "--store", "memory", "--port", "0", "--access-log", "no/log"],
            "The access log no/log cannot be written: No such file or directory. Name another file with --access-log.",
        ),
    ],
)
@pytest.mark.shows("H.12", "I.9")
def test_what_keeps_a_server_from_starting_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    ran = run(tmp_path, "serve", *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"antiphon: {sentence}\n")


@pytest.mark.shows("I.9")
def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run(tmp_path, "serve", "--engine", "fake", "--port", str(port))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert f"Port {port} on 127.0.0.1 is in use" in ran.stderr


@pytest.mark.parametrize("content", [None, "[[reply]]\nnonsense = 1\n"])
def test_a_bad_script_for_the_fake_engine_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "script.toml").write_text(content)
    ran = run(tmp_path, "serve", "--engine", "fake", "--port", "0", "--fake-script", "script.toml")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "script.toml" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no.gguf"], "There is no model file no.gguf."),
        (["no"], "There is no file no, and no known model of that name: smollm2-135m-instruct, all-minilm-l6-v2."),
        (["broken.gguf"], "broken.gguf is not a usable GGUF file: "),
        (["a=x.gguf", "--model", "a=y.gguf"], "Two models have the id 'a': name one of them otherwise, as in ID=FILE."),
        (["--cache-dir", "broken.gguf"], "The folder for models, broken.gguf/models, cannot be used: Not a directory."),
    ],
)
@pytest.mark.shows("I.9")
def test_a_model_that_cannot_be_had_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    ran = run(tmp_path, "serve", "--port", "0", *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"antiphon: {sentence}")


@pytest.mark.shows("H.17")
def test_flags_variables_and_the_file_reach_the_server(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text('engine = "fake"\nserved_model_name = ["file", "alias"]\n')
    environment = {**clean(tmp_path), "ANTIPHON_PORT": "0", "ANTIPHON_LOG_FORMAT": "json"}
    with started(tmp_path, environment, "--served-model-name", "flag") as server:
        assert server.stderr is not None
        line = json.loads(server.stderr.readline())
    assert line["message"] == "listening"
    assert line["models"] == ["flag"]
    assert line["address"].startswith("http://127.0.0.1:")


@pytest.mark.shows("I.1", "I.2")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_a_real_model_answers_with_no_settings_at_all(tmp_path: Path) -> None:
    with serving(ready_seconds=300) as live:
        ran = run(tmp_path, "chat", "--url", live.url, "Say hello.", seconds=100)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_the_banner_tells_where_to_go() -> None:
    with serving("--engine", "fake", "--served-model-name", "parrot", "--api-key", "hush") as live:
        said = live.output().decode()
        assert f"{live.url}/docs" in said
        assert f"curl {live.url}/v1/responses" in said
        assert '"model": "parrot"' in said
        assert "store memory" in said
        assert "hush" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_told_to_stop_ends_well(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, clean(tmp_path), "--engine", "fake", "--port", "0") as server:
        assert server.stderr is not None
        first = server.stderr.readline()
        assert b"Antiphon" in first
        os.kill(server.pid, number)
        assert server.wait(timeout=DEADLINE) == 0
        said = server.stderr.read()
        assert b"Traceback" not in said
        assert b"Told to stop: nothing new is taken, and what runs has 10 seconds to end." in said


@pytest.mark.shows("B.1", "A.3")
def test_responses_are_kept_with_nothing_to_set_up(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--port", "0")
    with started(tmp_path, clean(tmp_path), *flags) as server:
        body = json.dumps({"model": "fake", "input": "remember me"})
        made = ask(server, "POST", "/v1/responses", body)
        os.kill(server.pid, signal.SIGKILL)
    with started(tmp_path, clean(tmp_path), *flags) as server:
        assert ask(server, "GET", f"/v1/responses/{json.loads(made)['id']}") == made
    assert (tmp_path / "antiphon" / "antiphon.db").exists()


def ask(server: subprocess.Popen[bytes], method: str, path: str, body: str | None = None) -> bytes:
    """Of a server that was just started."""
    assert server.stderr is not None
    address = next(line for line in server.stderr if b"/v1" in line).split()[-1].decode()
    connection = http.client.HTTPConnection(address.removeprefix("http://").removesuffix("/v1"), timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()


@contextlib.contextmanager
def started(folder: Path, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*COMMAND, "serve", *arguments], env=environment, cwd=folder, stderr=subprocess.PIPE
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def test_a_server_that_waits_for_a_slow_network_can_be_stopped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE)
        index = {name: "" for name in os.environ if name.startswith("PIP_")}
        index |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple"}
        process = subprocess.Popen([*COMMAND, "serve", "--port", "0"], env={**clean(tmp_path), **index}, cwd=tmp_path)
        try:
            connection, _ = silent.accept()  # pip is there, and will never be answered
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=DEADLINE) == 0
            connection.close()
        finally:
            process.kill()
    assert not list(tmp_path.rglob("*.whl"))
