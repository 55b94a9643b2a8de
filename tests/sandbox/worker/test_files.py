"""Reading, writing and deleting in a folder that belongs to hostile code. Covers `sandbox/worker/paths.py`."""

import os
import socket
from pathlib import Path

import pytest

from antiphon.sandbox.worker.files import Folder, remove_tree
from antiphon.sandbox.worker.paths import FileRefused, check_path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path), os.geteuid())


@pytest.mark.parametrize("path", ["", "/a", "a/", "../a", "a/../b", "./a", "a\0b", "a\nb", "é" * 200, "a/" * 40 + "a"])
def test_an_unusual_path_is_refused(path: str) -> None:
    with pytest.raises(FileRefused):
        check_path(path)


def test_what_is_no_regular_file_below_the_folder_is_neither_read_nor_written(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "outside").symlink_to("/etc")
    (tmp_path / "inside").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for path in ("link", "outside/hostname", "inside", "fifo", "socket"):
        with pytest.raises(FileRefused):
            folder.read(path, 0, 10)
        with pytest.raises(FileRefused):
            folder.write(path, 0, b"x")


def test_a_file_is_written_and_read_in_parts(folder: Folder) -> None:
    folder.write("a/b/c", 0, b"old content")
    folder.write("a/b/c", 0, b"new")
    folder.write("a/b/c", 3, b"er")
    assert folder.read("a/b/c", 1, 3) == (b"ewe", 5)
    assert list(folder.survey(10).files) == ["a/b/c"]


def test_a_survey_stops_at_its_maximum_and_at_deep_folders(folder: Folder, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert folder.survey(5).entries == 6
    (tmp_path / Path(*"d" * 40)).mkdir(parents=True)
    assert folder.survey(1000).too_deep


def test_names_that_are_no_text_are_counted_but_not_listed(folder: Folder, tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline"):
        os.close(os.open(os.path.join(os.fsencode(tmp_path), name), os.O_CREAT))
    survey = folder.survey(10)
    assert (survey.files, survey.entries) == ({}, 2)


def test_a_tree_that_is_deeper_than_paths_can_be_is_deleted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    current = os.open(root, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("folder", 0o700, dir_fd=current)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
        below = os.open("folder", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    (root / "closed").mkdir(0o000)
    (root / "link").symlink_to("/etc")
    remove_tree(str(root))
    assert not root.exists()
    assert Path("/etc/hostname").exists()
