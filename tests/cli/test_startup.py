"""Start and stop of a server process: startup errors are one message with exit code 2, and a stopped server exits with
0.

Covers `cli/commands.py`.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from antiphon.engines.embedded.known_models import DEFAULT_MODEL
from tests.cli.process import COMMAND, TIMEOUT_SECONDS, clean_environment, run_antiphon
from tests.support.server_process import run_server


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "x"], "--port is 'x'; expected a whole number from 0 to 65535."),
        (["--config", "no.toml"], "--config names no.toml, which is not a file."),
        (
            ["--engine", "steam"],
            "There is no engine 'steam'; "
            "expected fake, llamacpp, llamacpp-server, ollama, openai, openvino, ovms, sglang or vllm.",
        ),
        (
            ["--engine", "fake", "--host", "0.0.0.0"],
            "Listening on 0.0.0.0 exposes the server to other machines, which requires an API key. "
            "Create one with `antiphon keys create`, set --api-key, or listen on 127.0.0.1.",
        ),
        (
            ["--engine", "fake", "--host", "no.such.host.invalid", "--api-key", "k"],
            "The host no.such.host.invalid cannot be resolved. Choose another with --host.",
        ),
        (
            ["--allow-origin", "app.example", "--allow-origin", "https://b"],
            "--allow-origin is 'app.example', 'https://b'; expected SCHEME://HOST:PORT, or a list.",
        ),
        (["--allow-host", "https://app"], "--allow-host is 'https://app'; expected a host name, or a list."),
        (["--mcp-server", "x"], "--mcp-server is 'x'; expected LABEL=URL, or a list."),
        (
            ["--engine", "fake", "--store", "memory", "--port", "0", "--access-log", "no/log"],
            "The access log no/log cannot be written: No such file or directory. Name another file with --access-log.",
        ),
    ],
)
@pytest.mark.shows("H.12", "I.9")
def test_a_startup_error_prints_one_message_and_exits_with_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    ran = run_antiphon(tmp_path, "serve", *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"antiphon: {message}\n")


@pytest.mark.shows("I.9")
def test_a_port_in_use_prints_one_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run_antiphon(tmp_path, "serve", "--engine", "fake", "--port", str(port))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert f"Port {port} on 127.0.0.1 is in use" in ran.stderr


@pytest.mark.parametrize("content", [None, "[[reply]]\nnonsense = 1\n"])
def test_an_invalid_fake_script_prints_one_message(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "script.toml").write_text(content)
    ran = run_antiphon(tmp_path, "serve", "--engine", "fake", "--port", "0", "--fake-script", "script.toml")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "script.toml" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.gguf"], "There is no model file no.gguf."),
        (["no"], "There is no file no, and no known model of that name: smollm2-135m-instruct, all-minilm-l6-v2, "),
        (["hf:no"], "'hf:no' is not a model on the hub; expected hf:ORG/REPO or hf:ORG/REPO:QUANT, such as Q4_K_M."),
        (["broken.gguf"], "broken.gguf is not a usable GGUF file: "),
        (
            ["a=x.gguf", "--model", "a=y.gguf"],
            "Two models have the id 'a': give one of them another id, as in ID=FILE.",
        ),
        (["--cache-dir", "broken.gguf"], "The folder for models, broken.gguf/models, cannot be used: Not a directory."),
    ],
)
@pytest.mark.shows("I.9")
def test_an_unavailable_model_prints_one_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    ran = run_antiphon(tmp_path, "serve", "--port", "0", *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"antiphon: {message}")


@pytest.mark.shows("H.17")
def test_flags_variables_and_the_file_reach_the_server(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text('engine = "fake"\nserved_model_name = ["file", "alias"]\n')
    environment = {**clean_environment(tmp_path), "ANTIPHON_PORT": "0", "ANTIPHON_LOG_FORMAT": "json"}
    with run_serve(tmp_path, environment, "--served-model-name", "flag") as server:
        assert server.stderr is not None
        line = json.loads(server.stderr.readline())
    assert line["message"] == "listening"
    assert line["models"] == ["flag"]
    assert line["address"].startswith("http://127.0.0.1:")


@pytest.mark.shows("C1.5", "I.1", "I.2")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_a_real_model_answers_with_no_settings_at_all(tmp_path: Path) -> None:
    """The chat is interrupted at its first text. The defaults of the model end the other answer."""
    with run_server(ready_seconds=300) as server:
        assert read_chat_until_first_text(tmp_path, server.url, "Count from 1 to 1000.")
        model = json.loads(server.get("/v1/models")[1])["data"][0]["id"]
        status, body = server.post({"model": model, "input": "Say hello."})
    assert status == 200, body
    response, defaults = json.loads(body), DEFAULT_MODEL.sampling
    assert (response["temperature"], response["top_p"]) == (defaults.temperature, defaults.top_p)
    assert response["usage"]["output_tokens"] <= response["max_output_tokens"] == defaults.max_tokens
    (message,) = response["output"]
    assert message["content"][0]["text"].strip()


def read_chat_until_first_text(folder: Path, url: str, question: str) -> bytes:
    """Run `antiphon chat`, interrupt it at the first visible character of the answer, and return this character."""
    with subprocess.Popen(
        [*COMMAND, "chat", "--url", url, question],
        env=clean_environment(folder), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as chat:  # fmt: skip
        assert chat.stdout is not None
        characters = iter(partial(chat.stdout.read, 1), b"")
        first = next((character for character in characters if character.strip()), b"")
        chat.send_signal(signal.SIGINT)
        _, errors = chat.communicate(timeout=TIMEOUT_SECONDS)
    assert chat.returncode == 0, errors
    return first


def test_the_banner_shows_the_docs_url_and_an_example_request() -> None:
    with run_server("--engine", "fake", "--served-model-name", "parrot", "--api-key", "hush") as server:
        output = server.read_output().decode()
        assert f"{server.url}/docs" in output
        assert f"curl {server.url}/v1/responses" in output
        assert '"model": "parrot"' in output
        assert "store memory" in output
        assert "hush" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_is_logged_and_the_server_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with run_serve(tmp_path, clean_environment(tmp_path), "--engine", "fake", "--port", "0") as server:
        assert server.stderr is not None
        first = server.stderr.readline()
        assert b"Antiphon" in first
        os.kill(server.pid, number)
        assert server.wait(timeout=TIMEOUT_SECONDS) == 0
        output = server.stderr.read()
        assert b"Traceback" not in output
        assert b"Shutting down: no new work is accepted; running requests have 10 seconds to end." in output


@pytest.mark.shows("B.1", "A.3")
def test_responses_are_stored_without_any_settings(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--port", "0")
    with run_serve(tmp_path, clean_environment(tmp_path), *flags) as server:
        body = json.dumps({"model": "fake", "input": "remember me"})
        made = send_request(server, "POST", "/v1/responses", body)
        os.kill(server.pid, signal.SIGKILL)
    with run_serve(tmp_path, clean_environment(tmp_path), *flags) as server:
        assert send_request(server, "GET", f"/v1/responses/{json.loads(made)['id']}") == made
    assert (tmp_path / "antiphon" / "antiphon.db").exists()


def send_request(server: subprocess.Popen[bytes], method: str, path: str, body: str | None = None) -> bytes:
    """Send a request to a server that was just started, at the address that it prints."""
    assert server.stderr is not None
    address = next(line for line in server.stderr if b"/v1" in line).split()[-1].decode()
    connection = http.client.HTTPConnection(
        address.removeprefix("http://").removesuffix("/v1"), timeout=TIMEOUT_SECONDS
    )
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return response.read()


@contextlib.contextmanager
def run_serve(folder: Path, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*COMMAND, "serve", *arguments], env=environment, cwd=folder, stderr=subprocess.PIPE
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def test_a_server_that_waits_for_a_download_can_be_stopped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(TIMEOUT_SECONDS)
        index = {name: "" for name in os.environ if name.startswith("PIP_")}
        index |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple"}
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0"], env={**clean_environment(tmp_path), **index}, cwd=tmp_path
        )
        try:
            connection, _ = silent.accept()  # pip has connected and never gets an answer
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=TIMEOUT_SECONDS) == 0
            connection.close()
        finally:
            process.kill()
    assert not list(tmp_path.rglob("*.whl"))
