"""A real model answers a question with the code interpreter, and draws with it.

It is the GGUF file that TEST_GGUF names (`make test-engines GGUF=FILE`), Qwen2.5-Coder-1.5B-Instruct or better. Its
code has the packages of `make sandbox-packages`.
"""

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.oracles.responses import check_response
from tests.real.test_required_calls import first_model_id
from tests.support.sandboxes import PACKAGES_PYTHON
from tests.support.server_process import run_server

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(3000)]

TOOL: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
OPEN_IMAGE = "import io, sys; from PIL import Image; print(Image.open(io.BytesIO(sys.stdin.buffer.read())).size)"


@pytest.fixture(scope="module")
def code_client() -> Iterator[OpenAI]:
    if not (file := os.environ.get("TEST_GGUF", "")):
        pytest.skip("real engine: TEST_GGUF is not set: `make test-engines GGUF=FILE` sets it")
    if not PACKAGES_PYTHON.exists():
        pytest.skip("download: `make sandbox-packages` installs numpy, pandas, matplotlib and pillow")
    flags = ["--sandbox", "auto", "--sandbox-python", str(PACKAGES_PYTHON), "--context", "4096"]
    with run_server("--engine", "llamacpp", "--model", file, *flags, ready_seconds=300) as server:
        yield OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=900)


def run_code(client: OpenAI, question: str) -> list[Any]:
    """Ask a question and return the outputs of the code that the model ran for it."""
    response = client.responses.create(
        model=first_model_id(client),
        input=question,
        tools=[TOOL],
        include=["code_interpreter_call.outputs"],
        temperature=0,
        max_output_tokens=600,
    )
    body = json.loads(response.to_json())
    check_response(body)
    calls = [item for item in body["output"] if item["type"] == "code_interpreter_call"]
    for call in calls:
        sys.stdout.write(f"{call['code']}\n{str(call['outputs'])[:300]}\n")
    sys.stdout.write(f"{response.output_text}\n")
    return [output for call in calls for output in call["outputs"] or []]


@pytest.mark.shows("E.18")
def test_a_real_model_computes_with_code(code_client: OpenAI) -> None:
    outputs = run_code(code_client, "What is 4871 * 3923? Run Python code to compute it, and print the result.")
    assert any("19108933" in output.get("logs", "") for output in outputs)


@pytest.mark.shows("E.19")
def test_a_plot_of_a_real_model_opens_as_an_image(code_client: OpenAI) -> None:
    outputs = run_code(code_client, "Run Python code that plots y = x * x for x from 0 to 10 with matplotlib.")
    image = next(output["url"] for output in outputs if output["type"] == "image")
    content = b64decode(image.removeprefix("data:image/png;base64,"), validate=True)
    opened = subprocess.run([str(PACKAGES_PYTHON), "-c", OPEN_IMAGE], input=content, capture_output=True, check=True)
    width, height = map(int, opened.stdout.decode().strip("()\n").split(", "))
    assert width >= 100
    assert height >= 100
