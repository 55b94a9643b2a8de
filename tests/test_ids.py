import os
import re

import pytest

from antiphon.ids import new_id


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
