"""Model files on the command line, as a client sees them."""

import json
from pathlib import Path

import pytest

from tests.support.server_process import serving

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]


@pytest.mark.shows("C.3", "C.4")
def test_files_are_served_by_their_paths_and_loaded_when_they_are_asked_for(model_file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.symlink_to(model_file)
    flags = ("--model", f"other={model_file}", "--context", "256", "--slots", "1")
    with serving(str(mine), *flags, ready_seconds=100) as live:
        assert [model["id"] for model in json.loads(live.get("/v1/models")[1])["data"]] == ["mine", "other"]
        for name in ("mine", "other", "mine"):
            status, answer = live.post({"model": name, "input": "Say hello.", "max_output_tokens": 4})
            assert (status, json.loads(answer)["usage"]["output_tokens"] > 0) == (200, True)
