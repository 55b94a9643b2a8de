import os
import re

import pytest

from antiphon.ids import ItemIds, Prefix, home, is_id, is_item_id, new_id


@pytest.mark.shows("A.51")
def test_an_id_is_its_prefix_and_a_uuid_of_version_7() -> None:
    assert re.fullmatch(r"resp_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", new_id("resp"))


def test_a_hundred_thousand_ids_are_all_different() -> None:
    assert len({new_id("msg") for _ in range(100_000)}) == 100_000


@pytest.mark.shows("A.51")
def test_ids_of_one_kind_sort_by_the_moment_they_were_made() -> None:
    ids = [new_id("resp") for _ in range(1000)]
    moments = [one[5:17] for one in ids]
    assert moments == sorted(moments)


def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    new_id("resp")  # the pool is filled before the fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_id("resp")[-12:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() != new_id("resp")[-12:]
    os.close(read)
    os.close(write)


def test_the_items_of_a_response_get_the_same_ids_every_time() -> None:
    response = new_id("resp")
    first, again = ItemIds(response), ItemIds(response)
    prefixes: list[Prefix] = ["rs", "msg", "fc", "call", "msg"]
    ids = [first(prefix) for prefix in prefixes]
    assert ids == [again(prefix) for prefix in prefixes]
    assert len({one.rpartition("_")[2] for one in ids}) == len(ids)


def test_items_sort_by_their_response_and_there_the_input_comes_first() -> None:
    earlier, later = "resp_" + "0" * 32, "resp_" + "0" * 31 + "1"
    made = [ItemIds(one, side) for one in (earlier, later) for side in ("input", "output")]
    ids = [make("msg") for make in made for _ in range(200)]
    assert ids == sorted(ids)
    assert len({*ids}) == len(ids)


def test_an_item_knows_its_home() -> None:
    response = new_id("resp")
    output, given = ItemIds(response), ItemIds(response, "input")
    for _ in range(70_000):
        last = output("msg")
    assert home(last) == home(output("call")) == home(given("rs")) == response


@pytest.mark.parametrize("item", ["", "msg", "msg_", "msg_1", "msg_" + "g" * 40, new_id("msg"), "msg_" + "A" * 40])
def test_an_item_that_was_made_for_no_response_has_no_home(item: str) -> None:
    assert home(item) is None


def test_an_id_that_we_could_not_have_made_is_told_from_ours() -> None:
    assert is_id(new_id("resp"), "resp")
    assert not is_id(new_id("conv"), "resp")
    assert not is_id(ItemIds(new_id("resp"))("msg"), "msg")
    for text in ("", "resp_", "resp_1", "resp_" + "x" * 32, "resp_" + "٣" * 32, new_id("resp") + "\n"):
        assert not is_id(text, "resp")


def test_an_items_id_is_known_by_its_form() -> None:
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
