"""Model files on the command line, as a client sees them."""

import json
from pathlib import Path

import pytest

from tests.support.server_process import run_server

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]


@pytest.mark.shows("C.3", "C.4")
def test_model_files_are_served_by_their_names_and_loaded_on_demand(model_file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.symlink_to(model_file)
    flags = ("--model", f"other={model_file}", "--context", "256", "--slots", "1")
    with run_server(str(mine), *flags, ready_seconds=100) as server:
        assert [model["id"] for model in json.loads(server.get("/v1/models")[1])["data"]] == ["mine", "other"]
        for name in ("mine", "other", "mine"):
            status, answer = server.post({"model": name, "input": "Say hello.", "max_output_tokens": 4})
            assert (status, json.loads(answer)["usage"]["output_tokens"] > 0) == (200, True)
