"""Converted models in the cache, without OpenVINO."""

import os
from pathlib import Path

from antiphon.engines.openvino.converted_models import (
    MAX_CONVERTED,
    find_converted,
    mark_used,
    remove_unused,
    store_converted,
)


def convert(file: Path, cache: Path) -> Path:
    made = cache / "openvino" / ".converting-1" / "model"
    made.mkdir(parents=True)
    (made / "openvino_model.xml").touch()
    folder = find_converted(file, cache)
    store_converted(made, folder)
    made.parent.rmdir()
    remove_unused(cache)
    return folder


def test_a_new_version_of_a_file_replaces_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"old")
    old = convert(file, tmp_path)
    file.write_bytes(b"newer")
    new = convert(file, tmp_path)
    assert [*old.parent.iterdir()] == [new]
    assert (new / "openvino_model.xml").exists()


def test_the_models_whose_last_use_is_the_longest_ago_are_removed(tmp_path: Path) -> None:
    (tmp_path / "openvino" / ".converting-killed" / "model").mkdir(parents=True)
    os.utime(tmp_path / "openvino" / ".converting-killed", (1, 1))
    folders = []
    for number in range(MAX_CONVERTED):
        file = tmp_path / f"{number}.gguf"
        file.touch()
        folders.append(convert(file, tmp_path))
        os.utime(folders[-1].parent, (100 + number, 100 + number))
    mark_used(folders[0])
    last = tmp_path / "last.gguf"
    last.touch()
    folders.append(convert(last, tmp_path))
    found = {*(tmp_path / "openvino").iterdir()}
    assert found == {folder.parent for folder in folders} - {folders[1].parent}
