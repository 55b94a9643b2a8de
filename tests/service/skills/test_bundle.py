"""Zip files of skills: what is accepted, and how hostile ones are refused."""

import stat
import struct
import time
import tracemalloc
import warnings
import zlib
from contextlib import suppress
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_STORED, ZipInfo

import pytest

from antiphon.errors import InvalidValue
from antiphon.service.skills import bundle as bundles
from antiphon.service.skills.bundle import MANIFEST as MANIFEST_NAME
from antiphon.service.skills.bundle import open_bundle, pack_files, parse_front_matter
from tests.support.skill_zips import MANIFEST, add_entry, make_zip


def refuse(data: bytes) -> str:
    with pytest.raises(InvalidValue) as refused:
        open_bundle(data, "files")
    assert refused.value.param == "files"
    return refused.value.message


def make_info(name: str, mode: int = 0, method: int = ZIP_DEFLATED) -> ZipInfo:
    info = ZipInfo(name)
    info.external_attr, info.compress_type = mode << 16, method
    return info


@pytest.mark.parametrize("folder", ["rescue/", ""])
def test_the_files_of_a_skill_are_read_relative_to_its_folder(folder: str) -> None:
    found = open_bundle(make_zip({"tools/run.sh": b"echo", "a b.txt": b""}, folder), "files")
    assert (found.name, found.description) == ("island-rescue", "How to be rescued.")
    assert [*found.entries] == ["tools/run.sh", "a b.txt", MANIFEST_NAME]
    assert (found.read("tools/run.sh"), found.read(MANIFEST_NAME)) == (b"echo", MANIFEST)


def test_the_manifest_may_be_written_in_any_case_and_is_named_in_one() -> None:
    data = pack_files([("f/skill.MD", MANIFEST), ("f/a", b"1")], "files")
    assert [*open_bundle(data, "files").entries] == ["a", MANIFEST_NAME]
    assert pack_files([("f/skill.MD", MANIFEST), ("f/a", b"1")], "files") == data


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "rescue/../../evil", "rescue/./a", "/etc/cron.d/evil", "//evil", "rescue//a"),
        *("rescue\\..\\evil", "C:\\evil", "rescue/a\nb", "rescue/" + "x" * 256, "rescue/" + "d/" * 40 + "a"),
        "rescue/" + "long" * 50 + "/" + "long" * 50 + "/" + "long" * 50,
    ],
)
def test_paths_that_leave_the_folder_or_are_no_plain_names_are_refused(name: str) -> None:
    assert "The skill is not accepted" in refuse(add_entry(make_zip(), make_info(name), b"x"))


def test_a_nul_in_a_name_is_refused() -> None:
    data = add_entry(make_zip(), make_info("rescue/evilXtxt"), b"x").replace(b"evilXtxt", b"evil\0txt")
    assert "no control characters" in refuse(data)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_links_and_devices_are_refused(kind: int) -> None:
    assert "links" in refuse(add_entry(make_zip(), make_info("rescue/link", kind | 0o777), b"/etc/passwd"))


def test_names_that_occur_twice_and_files_that_are_folders_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = add_entry(make_zip({"a": b"1"}), make_info("rescue/a"), b"2")
    assert "occurs twice" in refuse(data)
    assert "is a file and a folder" in refuse(make_zip({"a": b"1", "a/b/c": b"2"}))
    with pytest.raises(InvalidValue, match="occurs twice"):
        pack_files([("f/SKILL.md", MANIFEST), ("f/SKILL.md", MANIFEST)], "files")
    with pytest.raises(InvalidValue, match="without"):
        pack_files([("f/SKILL.md", MANIFEST), ("../a", b"")], "files")


def test_other_methods_encrypted_files_and_folders_with_content_are_refused() -> None:
    assert "deflate" in refuse(add_entry(make_zip(), make_info("rescue/a", method=ZIP_BZIP2), b"x"))
    data = bytearray(make_zip())
    start = data.rindex(b"PK\x01\x02")
    data[start + 8] |= 1
    assert "encrypted" in refuse(bytes(data))
    folder = bytearray(add_entry(make_zip(), make_info("rescue/bigX", method=ZIP_STORED), b"x" * 100))
    assert "content of its own" in refuse(bytes(folder).replace(b"rescue/bigX", b"rescue/big/"))


@pytest.mark.parametrize(
    ("files", "manifest", "reason"),
    [
        ({"b/SKILL.md": MANIFEST}, MANIFEST, "2 files SKILL.md"),
        ({"skill.md": MANIFEST}, MANIFEST, "2 files SKILL.md"),
        ({}, b"name: a", "front matter"),
        ({}, b"---\nname: a\n", "front matter"),
        ({}, b"---\nname: a\n---\n", "description"),
        ({}, b"---\ndescription: a\n---\n", "name"),
        ({}, b"---\nname: %s\ndescription: b\n---\n" % (b"a" * 65), "1 to 64"),
        ({}, b"---\nname: a\ndescription: %s\n---\n" % (b"b" * 1025), "1 to 1024"),
        ({}, b"---\nname: a\x1b[2J\ndescription: b\n---\n", "printable"),
        ({}, b"---\nname: \xff\n---\n", "UTF-8"),
        ({}, b"---\nname: a\ndescription: b\n---\n" + b" " * 2**20, "SKILL.md has more than"),
    ],
)
def test_a_skill_has_one_manifest_with_a_name_and_a_description(
    files: dict[str, bytes], manifest: bytes, reason: str
) -> None:
    assert reason in refuse(make_zip(files, manifest=manifest))


def test_files_outside_of_the_one_folder_are_refused() -> None:
    assert "one folder" in refuse(make_zip({"../other/a": b"1"}).replace(b"rescue/../other/a", b"otherx/yz/other/a"))
    assert "one folder" in refuse(make_zip(folder="a/b/"))
    assert "0 files SKILL.md" in refuse(pack_files([("f/a", b"")], "files"))


def test_the_number_and_the_sizes_of_files_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"{number}": b"" for number in range(499)}
    assert len(open_bundle(make_zip(many), "files").entries) == 500
    assert "more than 500 files" in refuse(make_zip({**many, "one more": b""}))
    assert "a file has more than" in refuse(make_zip({"big": bytes(25 * 2**20 + 1)}))
    monkeypatch.setattr(bundles, "MAX_UNPACKED_BYTES", 1000)
    assert "all files together" in refuse(make_zip({"a": bytes(600), "b": bytes(600)}))
    monkeypatch.setattr(bundles, "MAX_ZIP_BYTES", 100)
    assert "at most 100 bytes" in refuse(make_zip())


def test_a_bomb_is_refused_by_what_it_claims_and_unpacks_no_more_than_that() -> None:
    began = time.monotonic()
    assert "a file has more than" in refuse(make_zip({"bomb": bytes(200 * 2**20)}))
    liar = make_zip({"bomb": bytes(50 * 2**20)})
    size = struct.pack("<I", 50 * 2**20)
    tracemalloc.start()
    assert "checksum" in refuse(liar.replace(size, struct.pack("<I", 1000)))
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()
    assert time.monotonic() - began < 30


def test_a_directory_of_very_many_entries_is_not_read() -> None:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    count = 200_000
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 65535, 65535, len(entry) * count, 0, 0)
    assert "at most" in refuse(entry * count + end)


def test_broken_archives_are_refused() -> None:
    data = make_zip({"a": b"some text" * 100})
    for cut in range(0, len(data), 7):
        refuse(data[:cut])
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0xFF
        with suppress(InvalidValue):  # otherwise a date or an attribute was changed
            open_bundle(bytes(changed), "files")
    wrong = data.replace(struct.pack("<I", zlib.crc32(MANIFEST)), b"\0\0\0\0")
    assert "zip file" in refuse(wrong)


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("description: plain text # a comment", "plain text"),
        ("description:\n  on the\n  next lines", "on the next lines"),
        ("description: >-\n  folded\n  lines\nlicense: MIT", "folded lines"),
        ("description: |\n  kept\n\n  lines", "kept  lines"),
        ("description: 'it''s quoted # here'", "it's quoted # here"),
        ('description: "a \\"b\\"\\nc"', 'a "b" c'),
        ("# a comment\ndescription: last\nmetadata:\n  name: nested", "last"),
    ],
)
def test_the_front_matter_is_read_as_yaml(text: str, description: str) -> None:
    assert parse_front_matter(f"\ufeff---\n{text}\n---\nname: body")["description"] == description
