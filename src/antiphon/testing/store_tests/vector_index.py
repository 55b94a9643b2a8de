"""Contract suite of stores: indexing the files of vector stores, and reading what searches find.

Covers `stores/sql/vector_jobs.py`, `stores/sql/vector_chunks.py`, `stores/sql/text_index.py` and
`stores/vector_rows.py`.
"""

import asyncio
from collections import Counter

import pytest

from antiphon.stores.base import OwnershipLost
from antiphon.stores.sql import text_index
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import FileCounts, IndexResult, StoredVectors, VectorFileKey
from antiphon.testing.rows.response_rows import TENANT, Clock, make_claim
from antiphon.testing.rows.vector_rows import (
    EMBEDDER,
    MAX_ATTEMPTS,
    add_stored_file,
    attach_file,
    claim_one,
    create_vector_store,
    index_texts,
    make_chunks,
    make_new_file,
)

DONE = IndexResult(usage_bytes=100, embedder=EMBEDDER, dimensions=1)
FAILED = IndexResult(error_code="invalid_file", error_message="It is empty.")


async def find_texts(
    store: Store, name: str, *words: str, files: list[str] | None = None, limit: int = 10
) -> list[str]:
    found = await store.search_text(TENANT, name, words, limit, files)
    texts = await store.read_chunks(TENANT, name, [one.chunk for one in found])
    assert [texts[one.chunk][0] for one in found] == [one.file for one in found]
    return [texts[one.chunk][1] for one in found]


async def load_all(store: Store, name: str, embedder: str = EMBEDDER, after: int = 0) -> list[StoredVectors]:
    """Load all vectors, one per page."""
    loaded: list[StoredVectors] = []
    cursor = (after, 2**31)
    while page := await store.load_vectors(TENANT, name, embedder, cursor, 1):
        loaded += page
        cursor = (page[-1].changed, page[-1].number)
    return loaded


async def purge(store: Store, limit: int = 2) -> int:
    """Delete all garbage, and return in how many steps."""
    steps = 0
    while await store.purge_vector_chunks(limit):
        steps += 1
    return steps


async def test_no_chunk_is_found_before_all_of_its_file_are_written(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file = await attach_file(store, clock, name, {"a": 1})
    job = await claim_one(store, clock)
    assert (job.tenant, job.row.file, job.attempts) == (TENANT, file, 1)
    chunks = make_chunks(["red fox", "red\0hen"])
    for chunk in chunks:
        await store.write_chunks(job.key, [chunk])
    assert await find_texts(store, name, "red") == []
    assert await load_all(store, name) == []
    assert await store.list_searchable_files(TENANT, name) == {}
    assert (await store.page_chunks(TENANT, name, file, 0, 10)).rows == []
    await store.finish_vector_file(job.key, DONE)
    assert sorted(await find_texts(store, name, "red")) == ["red fox", "red hen"]
    assert [(row.file, row.vectors) for row in await load_all(store, name)] == [(file, b"red "), (file, b"red\0")]
    assert (await store.list_searchable_files(TENANT, name))[file].filename == f"{file}.txt"
    row = await store.vector_store(TENANT, name)
    assert row is not None
    assert (row.counts, row.usage_bytes, row.embedder) == (FileCounts(completed=1), 100, EMBEDDER)
    assert (row.dimensions, row.version) == (1, 1)


async def test_a_job_has_one_owner_until_its_claim_expires(store: Store, other_store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    for _ in range(4):
        await attach_file(store, clock, name)
    claims = [one.claim_vector_files(make_claim(clock), 3, MAX_ATTEMPTS) for one in (store, other_store)]
    jobs = [job for claimed in await asyncio.gather(*claims) for job in claimed]
    jobs += await store.claim_vector_files(make_claim(clock), 3, MAX_ATTEMPTS)
    assert len({job.row.file for job in jobs}) == len(jobs) == 4
    clock.now += 9
    kept = jobs[0].key
    stranger = VectorFileKey("other", *kept[1:])
    assert await store.renew_vector_files(make_claim(clock), [kept, stranger]) == {kept}
    assert await store.renew_vector_files(make_claim(clock, "other"), [kept]) == set()
    clock.now += 1
    taken = await other_store.claim_vector_files(make_claim(clock, "other"), 10, MAX_ATTEMPTS)
    assert {job.row.file for job in taken} == {job.row.file for job in jobs[1:]}
    assert {(job.fence, job.attempts) for job in taken} == {(2, 2)}


async def test_a_former_owner_cannot_write_or_finish(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    await attach_file(store, clock, name)
    former = await claim_one(store, clock)
    await store.write_chunks(former.key, make_chunks(["former text"]))
    clock.now += 10
    owner = await claim_one(store, clock, "other")
    for write in (store.write_chunks(former.key, make_chunks(["late"])), store.finish_vector_file(former.key, DONE)):
        with pytest.raises(OwnershipLost):
            await write
    await store.write_chunks(owner.key, make_chunks(["text"]))
    await store.finish_vector_file(owner.key, DONE)
    await store.finish_vector_file(owner.key, DONE)  # repeated: its reply was lost
    assert await find_texts(store, name, "text") == ["text"]
    assert await store.vector_store_version(TENANT, name) == (1, EMBEDDER, 1)
    with pytest.raises(OwnershipLost):
        await store.write_chunks(owner.key, make_chunks(["late"]))


async def test_a_cancelled_or_removed_file_rejects_its_owner(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    cancelled = await attach_file(store, clock, name, batch="vsfb_1")
    job = await claim_one(store, clock)
    await store.cancel_vector_batch(TENANT, name, "vsfb_1")
    with pytest.raises(OwnershipLost):
        await store.finish_vector_file(job.key, DONE)
    await store.add_vector_files(TENANT, name, [make_new_file(cancelled)], None, 10)
    with pytest.raises(OwnershipLost):
        await store.write_chunks(job.key, make_chunks(["late"]))
    job = await claim_one(store, clock)
    assert await store.remove_vector_file(TENANT, name, cancelled)
    assert not await store.remove_vector_file(TENANT, name, cancelled)
    with pytest.raises(OwnershipLost):
        await store.finish_vector_file(job.key, DONE)


async def test_chunks_that_are_written_twice_are_stored_once(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    await attach_file(store, clock, name)
    job = await claim_one(store, clock)
    for _ in range(2):
        await store.write_chunks(job.key, make_chunks(["text"]))
    await store.finish_vector_file(job.key, DONE)
    assert await find_texts(store, name, "text") == ["text"]


async def test_a_released_job_can_be_claimed_from_a_time_on(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    await attach_file(store, clock, name)
    job = await claim_one(store, clock)
    await store.release_vector_file(job.key, clock() + 5, 0)
    await store.release_vector_file(job.key, clock(), 7)  # not owned any more
    assert await store.claim_vector_files(make_claim(clock), 1, MAX_ATTEMPTS) == []
    clock.now += 5
    again = await claim_one(store, clock)
    assert (again.attempts, again.fence) == (1, 2)


async def test_a_file_fails_after_the_last_attempt(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file = await attach_file(store, clock, name)
    for _ in range(MAX_ATTEMPTS):
        await claim_one(store, clock)
        clock.now += 10
    assert await store.claim_vector_files(make_claim(clock), 1, MAX_ATTEMPTS) == []
    row = await store.vector_file(TENANT, name, file)
    assert row is not None
    assert (row.status, row.error_code) == ("failed", "server_error")
    assert "3 times" in (row.error_message or "")


async def test_the_tenant_with_the_fewest_jobs_comes_first(store: Store, clock: Clock) -> None:
    busy, idle = await create_vector_store(store, clock), await create_vector_store(store, clock, tenant="idle")
    files = []
    for _ in range(5):
        files.append(await attach_file(store, clock, busy))
        clock.now += 1
    await attach_file(store, clock, idle, tenant="idle")
    jobs = await store.claim_vector_files(make_claim(clock), 3, MAX_ATTEMPTS)
    assert Counter(job.tenant for job in jobs) == {TENANT: 2, "idle": 1}
    assert [job.row.file for job in jobs if job.tenant == TENANT] == files[:2]


async def test_a_file_that_is_indexed_again_is_found_with_its_former_chunks_until_then(
    store: Store, clock: Clock
) -> None:
    name = await create_vector_store(store, clock)
    file = await index_texts(store, clock, name, ["old text"])
    await store.add_vector_files(TENANT, name, [make_new_file(file, {"b": 2})], None, 10)
    job = await claim_one(store, clock)
    await store.write_chunks(job.key, make_chunks(["new text", "more text"]))
    assert await find_texts(store, name, "text") == ["old text"]
    await store.finish_vector_file(job.key, DONE)
    assert sorted(await find_texts(store, name, "text")) == ["more text", "new text"]
    assert (await store.page_chunks(TENANT, name, file, 0, 1)).has_more
    assert (await store.page_chunks(TENANT, name, file, 1, 1)).rows == ["more text"]


async def test_a_file_that_fails_is_not_found_any_more(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file = await index_texts(store, clock, name, ["old text"])
    version = (await store.vector_store_version(TENANT, name)).version
    await store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10)
    job = await claim_one(store, clock)
    await store.write_chunks(job.key, make_chunks(["new text"]))
    await store.finish_vector_file(job.key, FAILED)
    assert await find_texts(store, name, "text") == []
    row = await store.vector_file(TENANT, name, file)
    assert row is not None
    assert (row.status, row.error_code, row.error_message) == ("failed", "invalid_file", "It is empty.")
    assert await store.vector_store_version(TENANT, name) == (version + 1, EMBEDDER, 1)


async def test_files_of_another_embedder_are_indexed_again_and_found_by_their_text(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    old = [await index_texts(store, clock, name, [f"text {n}"], embedder=f"{n} model") for n in range(2)]
    new = await index_texts(store, clock, name, ["text 2"], embedder="1 new")
    assert await store.reindex_vector_files("1 new", 1) == 1
    assert await store.reindex_vector_files("1 new", 10) == 1
    assert await store.reindex_vector_files("1 new", 10) == 0
    assert len(await find_texts(store, name, "text")) == 3
    assert [row.file for row in await load_all(store, name, "1 new")] == [new]
    jobs = await store.claim_vector_files(make_claim(clock), 10, MAX_ATTEMPTS)
    assert {job.row.file for job in jobs} == {*old}
    for job in jobs:
        await store.write_chunks(job.key, make_chunks(["text"]))
        await store.finish_vector_file(job.key, IndexResult(embedder="1 new"))
    assert {row.file for row in await load_all(store, name, "1 new")} == {*old, new}


async def test_vectors_are_loaded_from_a_version_on(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    first = await index_texts(store, clock, name, ["one", "two"], vectors=[[b"aaaa", b"bbbb"], []])
    second = await index_texts(store, clock, name, ["three"])
    loaded = await load_all(store, name)
    assert [(row.changed, row.file, row.vectors) for row in loaded] == [(1, first, b"aaaabbbb"), (2, second, b"thre")]
    assert await load_all(store, name, after=1) == loaded[1:]
    assert await store.load_vectors("other", name, EMBEDDER, (0, 0), 10) == []
    chunks = [row.chunk for row in loaded]
    assert await store.read_vectors([*chunks, 2**40]) == {row.chunk: row.vectors for row in loaded}
    assert await store.read_chunks("other", name, chunks) == {}
    other = await create_vector_store(store, clock)
    await store.add_vector_files(TENANT, other, [make_new_file(first)], None, 10)
    await store.finish_vector_file((await claim_one(store, clock)).key, DONE)
    assert await store.read_chunks(TENANT, other, chunks) == {}


async def test_many_chunks_are_read_together(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    await index_texts(store, clock, name, [f"text {n}" for n in range(600)])
    chunks = [row.chunk for row in await store.load_vectors(TENANT, name, EMBEDDER, (0, -1), 1000)]
    assert len(await store.read_vectors(chunks)) == 600
    assert {text for _, text in (await store.read_chunks(TENANT, name, chunks)).values()} == {
        f"text {n}" for n in range(600)
    }


async def test_text_is_found_by_the_stems_of_any_of_its_words_best_first(store: Store, clock: Clock) -> None:
    name, other = await create_vector_store(store, clock), await create_vector_store(store, clock)
    texts = ["Foxes were jumping over the dog.", "A fox.", "The weather is fine.", "A dog and a fox jumped."]
    await index_texts(store, clock, name, texts)
    await index_texts(store, clock, other, ["A fox and a dog jump."])
    assert {*await find_texts(store, name, "fox", "jump")} == {texts[0], texts[1], texts[3]}
    assert (await find_texts(store, name, "fox", "jump"))[2] == texts[1]
    assert await find_texts(store, name, "nothing") == []
    assert await find_texts(store, name) == []
    assert len(await find_texts(store, name, "fox", limit=2)) == 2
    assert await store.search_text("other", name, ["fox"], 10) == []
    scores = [one.score for one in await store.search_text(TENANT, name, ["fox", "dog"], 10)]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("京都の寺は美しい。", ["京都"]),
        ("黒猫", ["猫"]),
        ("서울에서 왔다", ["서울"]),
        ("हिन्दी किताब", ["हनद"]),
        ("Die Größe", ["grosse"]),
        ("see notes.txt", ["notes"]),
        ("half-empty", ["empti"]),
    ],
)
async def test_text_of_any_language_is_found(text: str, words: list[str], store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    await index_texts(store, clock, name, [text, "something else"])
    assert await find_texts(store, name, *words) == [text]


async def test_chunks_of_earlier_versions_are_indexed_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await create_vector_store(store, clock)
    with monkeypatch.context() as earlier:
        earlier.setattr(text_index, "index_words", str)
        await index_texts(store, clock, name, ["red", "京都の寺", "京都の橋"])
        await store._run(_forget_words, write=True)
    assert await find_texts(store, name, "red", "京都") == ["red"]
    assert [await store.index_words_again(2) for _ in range(3)] == [2, 1, 0]
    assert len(await find_texts(store, name, "red", "京都")) == 3


def _forget_words() -> Operation[None]:
    yield sql("UPDATE vector_chunks SET words = 0")


async def test_a_rare_word_counts_more_than_a_common_one(store: Store, clock: Clock) -> None:
    name, other = await create_vector_store(store, clock), await create_vector_store(store, clock)
    texts = [f"fox number {n}" for n in range(20)]
    await index_texts(store, clock, name, ["okapi number one", "fox fox fox", *texts])
    await index_texts(store, clock, other, ["okapi number one"] * 50)
    assert (await find_texts(store, name, "fox", "okapi"))[:2] == ["okapi number one", "fox fox fox"]


async def test_the_best_of_many_chunks_with_common_words_are_found(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in {"_MAX_RANKED": 40, "_MAX_CANDIDATES": 40, "_SAMPLED_CHUNKS": 50, "_LARGE_CHUNKS": 1}.items():
        monkeypatch.setattr(text_index, limit, value)
    name = await create_vector_store(store, clock)
    assert await find_texts(store, name, "red") == []
    texts = [f"red number {n}" for n in range(100)] + [f"blue number {n}" for n in range(100)]
    best = ["red red blue", "red blue and others", "okapi"]
    await index_texts(store, clock, name, texts + best)
    assert (await find_texts(store, name, "red", "blue"))[:2] == best[:2]
    assert (await find_texts(store, name, "red", "okapi"))[0] == "okapi"
    assert len(await find_texts(store, name, "red", "green")) == 10


@pytest.mark.parametrize("words", [["AND", "OR", "NOT", "NEAR"], ["text", "file"], ["ss", "2", "日本"], ["a1", "1"]])
async def test_no_word_is_an_operator(words: list[str], store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    await index_texts(store, clock, name, [" ".join([*words, "fox"])])
    await store.search_text(TENANT, name, words, 10)
    assert len(await find_texts(store, name, *words, "fox")) == 1


async def test_a_text_search_finds_the_best_of_the_files_that_are_allowed(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await create_vector_store(store, clock)
    others = [await index_texts(store, clock, name, ["fox fox fox"] * 5) for _ in range(3)]
    allowed = [await index_texts(store, clock, name, ["A fox is here with others."]) for _ in range(3)]
    for terms in (100, 0):  # the index is searched for the ids of files, or other files are skipped
        monkeypatch.setattr("antiphon.stores.sql.text_index._MAX_FILE_TERMS", terms)
        found = await store.search_text(TENANT, name, ["fox"], 2, allowed)
        assert len(found) == 2
        assert {one.file for one in found} < {*allowed}
        assert await store.search_text(TENANT, name, ["fox"], 2, []) == []
        best = await store.search_text(TENANT, name, ["fox"], 2, [others[0], allowed[0]])
        assert {one.file for one in best} == {others[0]}, "the number of chunks of a file does not matter"


async def test_chunks_that_no_search_finds_are_deleted_a_few_at_a_time(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    removed = await index_texts(store, clock, name, [f"red {n}" for n in range(5)])
    kept = await index_texts(store, clock, name, ["red"])
    chunks = [row.chunk for row in await load_all(store, name) if row.file == removed]
    assert await purge(store) == 0
    await store.remove_vector_file(TENANT, name, removed)
    assert await find_texts(store, name, "red") == ["red"]
    assert len(await store.read_vectors(chunks)) == 5
    assert await purge(store) == 3
    assert await store.read_vectors(chunks) == {}
    ranked = await store._run(lambda: store._text_index.search(name, ["red"], [], 10), write=False)
    assert len(ranked) == 1
    assert [one.file for one in await store.search_text(TENANT, name, ["red"], 10)] == [kept]


async def test_a_file_that_was_removed_and_added_again_keeps_its_new_chunks(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file, fences = await attach_file(store, clock, name), list[int]()
    for text in ("first", "second", "third"):
        for _ in range(2):  # the first owner dies
            job = await claim_one(store, clock)
            fences.append(job.fence)
            clock.now += 10
        await store.write_chunks(job.key, make_chunks([text]))
        await store.finish_vector_file(job.key, DONE)
        if text != "third":
            await store.remove_vector_file(TENANT, name, file)
            await store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10)
        if text == "second":
            await purge(store)
    await purge(store)
    assert await find_texts(store, name, "first", "second", "third") == ["third"]
    assert fences == sorted({*fences}), "a former owner has a fence of its own"


async def test_everything_of_a_deleted_or_expired_store_is_deleted(store: Store, clock: Clock) -> None:
    expired = await create_vector_store(store, clock, days=1)
    deleted = await create_vector_store(store, clock)
    unfinished = await add_stored_file(store, clock)
    chunks: list[int] = []
    for name in (expired, deleted):
        await index_texts(store, clock, name, ["red", "blue"])
        chunks += [row.chunk for row in await load_all(store, name)]
        await store.add_vector_files(TENANT, name, [make_new_file(unfinished)], None, 10)
        job = await claim_one(store, clock)
        await store.write_chunks(job.key, make_chunks(["half"]))
    clock.now += 86400
    assert await store.expire_vector_stores() == 1
    assert await store.delete_vector_store(TENANT, deleted)
    assert not await store.delete_vector_store(TENANT, deleted)
    assert await store.search_text(TENANT, deleted, ["red"], 10) == []
    assert await purge(store, 10) == 6  # two finished files, two unfinished ones, two text indexes
    assert await store.read_vectors(chunks) == {}
    assert await store.search_text(TENANT, deleted, ["red"], 10) == []


async def test_chunks_of_unfinished_attempts_are_deleted(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file = await attach_file(store, clock, name, batch="vsfb_1")
    for end in ("lost", "released", "added again", "cancelled", "failed"):
        job = await claim_one(store, clock)
        await store.write_chunks(job.key, make_chunks(["half"]))
        match end:
            case "lost":
                clock.now += 10
            case "released":
                await store.release_vector_file(job.key, clock(), 1)
            case "added again":
                await store.add_vector_files(TENANT, name, [make_new_file(file)], "vsfb_2", 10)
            case "cancelled":
                await store.cancel_vector_batch(TENANT, name, "vsfb_2")
                await store.add_vector_files(TENANT, name, [make_new_file(file)], "vsfb_2", 10)
            case "failed":
                await store.finish_vector_file(job.key, FAILED)
    assert await purge(store, 1) == 10  # five fences, under each of which a chunk was written
    await store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10)
    job = await claim_one(store, clock)
    await store.write_chunks(job.key, make_chunks(["whole"]))
    await store.finish_vector_file(job.key, DONE)
    await purge(store, 10)
    assert await find_texts(store, name, "half", "whole") == ["whole"]
