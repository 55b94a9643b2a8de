"""Ids of objects and items: their format, uniqueness and order, and the response id inside an item id."""

import os
import re

import pytest

from antiphon.ids import ItemIds, Prefix, is_id, is_item_id, new_id, parse_response_id


@pytest.mark.shows("A.51")
def test_an_id_is_its_prefix_and_a_uuid_of_version_7() -> None:
    assert re.fullmatch(r"resp_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", new_id("resp"))


def test_a_hundred_thousand_ids_are_all_different() -> None:
    assert len({new_id("msg") for _ in range(100_000)}) == 100_000


@pytest.mark.shows("A.51")
def test_ids_of_one_kind_sort_by_creation_time() -> None:
    ids = [new_id("resp") for _ in range(1000)]
    moments = [one[5:17] for one in ids]
    assert moments == sorted(moments)


def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    new_id("resp")  # fills the pool before the fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_id("resp")[-12:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() != new_id("resp")[-12:]
    os.close(read)
    os.close(write)


def test_the_item_ids_of_a_response_are_deterministic() -> None:
    response = new_id("resp")
    first, again = ItemIds(response), ItemIds(response)
    prefixes: list[Prefix] = ["rs", "msg", "fc", "call", "msg"]
    ids = [first(prefix) for prefix in prefixes]
    assert ids == [again(prefix) for prefix in prefixes]
    assert len({one.rpartition("_")[2] for one in ids}) == len(ids)


def test_item_ids_sort_by_response_with_the_input_first() -> None:
    earlier, later = "resp_" + "0" * 32, "resp_" + "0" * 31 + "1"
    made = [ItemIds(one, side) for one in (earlier, later) for side in ("input", "output")]
    ids = [make("msg") for make in made for _ in range(200)]
    assert ids == sorted(ids)
    assert len({*ids}) == len(ids)


def test_the_response_id_is_parsed_from_an_item_id() -> None:
    response = new_id("resp")
    output, input_ids = ItemIds(response), ItemIds(response, "input")
    for _ in range(70_000):
        last = output("msg")
    assert (
        parse_response_id(last) == parse_response_id(output("call")) == parse_response_id(input_ids("rs")) == response
    )


@pytest.mark.parametrize("item", ["", "msg", "msg_", "msg_1", "msg_" + "g" * 40, new_id("msg"), "msg_" + "A" * 40])
def test_an_item_id_of_no_response_yields_no_response_id(item: str) -> None:
    assert parse_response_id(item) is None


def test_is_id_rejects_ids_that_the_server_cannot_have_made() -> None:
    assert is_id(new_id("resp"), "resp")
    assert not is_id(new_id("conv"), "resp")
    assert not is_id(ItemIds(new_id("resp"))("msg"), "msg")
    for text in ("", "resp_", "resp_1", "resp_" + "x" * 32, "resp_" + "٣" * 32, new_id("resp") + "\n"):
        assert not is_id(text, "resp")


def test_is_item_id_checks_prefix_and_length() -> None:
    ids = ItemIds(new_id("resp"))
    assert all(is_item_id(one) for one in (new_id("msg"), new_id("item"), ids("msg"), ids("fc")))
    stem = new_id("msg").removeprefix("msg_")
    wrong = [
        "",
        "msg_",
        f"nobody_{stem}",
        stem,
        f"msg_{stem}0",
        f"msg_{stem[:-1]}",
        f"msg_{stem[:-1]}G",
        f"msg_{stem * 3}",
    ]
    assert [one for one in wrong if is_item_id(one)] == []
