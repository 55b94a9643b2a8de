"""The store: every method is one operation, which the driver of a database runs within one transaction.

`tenant` is the first argument of every method that touches tenant data. The changes of a method are durable when it
returns, or it raises and changes nothing. An id of another tenant behaves exactly like an id that never existed. A
store that cannot answer raises Unavailable within its deadline.

The row of a response:

    begin ──▶ queued ──▶ in_progress ──▶ completed | incomplete | failed | cancelled      (finish, once)
                 └────── the lease names the owner; the fence decides whose writes are accepted ──────┘

The fence grows with every change of owner. `start`, `finish`, `append` and `release` under a fence other than the row's
raise OwnershipLost and change nothing.

The operations document the methods. One that depends on the time takes it as its first argument.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from antiphon.stores.base import Claim, IdempotencyKey, NewResponse, ResponseEnd, SchemaStatus
from antiphon.stores.sql import (
    containers,
    conversations,
    deletion,
    files,
    keys,
    response_log,
    responses,
    running_responses,
    skills,
    totals,
    vector_chunks,
    vector_files,
    vector_jobs,
    vector_points,
    vector_stores,
)
from antiphon.stores.sql.operation import Operation
from antiphon.stores.sql.text_index import TextIndex

P = ParamSpec("P")
T = TypeVar("T")
Clock = Callable[[], float]
StoreMethod = Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]


def _method(operation: Callable[P, Operation[T]], *, write: bool) -> StoreMethod[P, T]:
    """Return a method that runs the operation."""

    async def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda: operation(*args, **kwargs), write=write)

    return method


def _timed_method(operation: Callable[Concatenate[float, P], Operation[T]], *, write: bool) -> StoreMethod[P, T]:
    """Return a method that runs the operation with the time of the call, also if it is restarted."""

    async def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        now = self._clock()
        return await self._run(lambda: operation(now, *args, **kwargs), write=write)

    return method


def _text_method(operation: Callable[Concatenate[TextIndex, P], Operation[T]], *, write: bool) -> StoreMethod[P, T]:
    """Return a method that runs the operation with the text index of the database."""

    async def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda: operation(self._text_index, *args, **kwargs), write=write)

    return method


class Store(ABC):
    """Persistent storage for all that is stored but the contents of files, on top of a driver's `_run`."""

    name: str
    has_points = False  # whether the database has an index of vectors; set by `open`
    _text_index: TextIndex

    def __init__(self, ttl: float, clock: Clock = time.time) -> None:
        self._ttl = ttl
        self._clock = clock

    @abstractmethod
    async def open(self) -> None:
        """Connect and migrate the schema. Raises StartupError, also for a schema newer than this server supports."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def is_healthy(self) -> bool:
        """Return whether the last operation succeeded."""

    @abstractmethod
    async def schema(self) -> SchemaStatus:
        """Read the schema version without opening or changing the store. A newer schema is not an error here."""

    def maintain_points(self) -> bool:
        """Begin to build what the index of vectors lacks, in the background. Returns whether there is such an index."""
        return self.has_points

    @abstractmethod
    def _run(self, make: Callable[[], Operation[T]], *, write: bool) -> Awaitable[T]:
        """Run one operation. `make` may be called again to restart it."""

    async def begin(
        self,
        tenant: str,
        new: NewResponse,
        claim: Claim,
        key: IdempotencyKey | None = None,
        max_background: int | None = None,
    ) -> str | None:
        """Write the row, with fence 1. If another response holds this key, return its id and write nothing.

        Raises KeyReused if the key was used with another body, UnknownPrevious if `previous` is not visible (or no
        longer), UnknownConversation likewise, and Busy if the tenant has `max_background` unfinished background
        responses.
        """
        now = self._clock()
        return await self._run(responses.prepare_begin(tenant, new, claim, key, max_background, now), write=True)

    async def finish(self, tenant: str, end: ResponseEnd) -> None:
        """Write the terminal state and drop the live log's rows. Repeating it under the same fence has no effect.

        With `end.new`, raises UnknownPrevious like `begin`.
        """
        await self._run(responses.prepare_finish(tenant, end, self._clock()), write=True)

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation. `find_item` still finds its items for as long as the store retains a response."""
        expires = self._clock() + self._ttl
        return await self._run(lambda: conversations.delete(tenant, conversation_id, expires), write=True)

    keyed = _timed_method(keys.find_key, write=False)
    start = _method(responses.start, write=True)
    get = _timed_method(responses.get, write=False)
    chain = _timed_method(responses.chain, write=False)
    delete = _timed_method(deletion.delete, write=True)

    renew = _timed_method(running_responses.renew, write=True)
    claim = _timed_method(running_responses.claim_orphans, write=True)
    take = _method(running_responses.take, write=True)
    release = _method(running_responses.release, write=True)
    append = _method(running_responses.append_batch, write=True)
    read = _method(running_responses.read_batches, write=False)
    expect_outputs = _method(running_responses.expect_outputs, write=True)
    submit_output = _timed_method(running_responses.submit_output, write=True)
    outputs = _method(running_responses.read_outputs, write=False)
    page_waiting = _method(running_responses.page_waiting, write=False)

    ask_approval = _method(keys.ask_approval, write=True)
    approval = _timed_method(keys.find_approval, write=False)
    use_approval = _timed_method(keys.use_approval, write=True)
    deny_approval = _method(keys.deny_approval, write=True)
    page_approvals = _timed_method(keys.page_approvals, write=False)

    create_conversation = _method(conversations.create, write=True)
    conversation = _method(conversations.get, write=False)
    merge_metadata = _timed_method(conversations.merge_metadata, write=True)
    add_items = _timed_method(conversations.add_items, write=True)
    all_items = _method(conversations.all_items, write=False)
    page_items = _method(conversations.page_items, write=False)
    item = _method(conversations.get_item, write=False)
    delete_item = _timed_method(conversations.delete_item, write=True)
    find_item = _timed_method(conversations.find_item, write=False)
    page_responses = _timed_method(responses.page_responses, write=False)
    page_conversations = _method(conversations.page_conversations, write=False)
    page_summaries = _timed_method(response_log.page_summaries, write=False)
    find_summaries = _timed_method(response_log.find_summaries, write=False)
    find_tree = _timed_method(response_log.find_tree, write=False)

    add_file = _method(files.add_file, write=True)
    file = _timed_method(files.get_file, write=False)
    page_files = _timed_method(files.page_files, write=False)
    delete_file = _timed_method(files.delete_file, write=True)
    expire_files = _timed_method(files.expire_files, write=True)
    find_unused = _method(files.find_unused, write=False)
    has_image = _method(files.has_image, write=False)
    list_images = _method(files.list_images, write=False)
    create_upload = _method(files.create_upload, write=True)
    upload = _timed_method(files.get_upload, write=False)
    add_part = _timed_method(files.add_part, write=True)
    parts = _method(files.list_parts, write=False)
    complete_upload = _timed_method(files.complete_upload, write=True)
    cancel_upload = _timed_method(files.cancel_upload, write=True)
    add_block = _timed_method(files.add_block, write=True)
    block = _method(files.get_block, write=False)
    delete_contents = _method(files.delete_contents, write=True)
    page_contents = _method(files.page_contents, write=False)

    add_container = _timed_method(containers.add_container, write=True)
    page_containers = _timed_method(containers.page_containers, write=False)
    use_container = _timed_method(containers.use_container, write=True)
    note_container_start = _method(containers.note_container_start, write=True)
    delete_container = _timed_method(containers.delete_container, write=True)
    end_container = _method(containers.end_container, write=True)
    list_due_containers = _timed_method(containers.list_due_containers, write=False)
    list_running_containers = _method(containers.list_running_containers, write=False)
    purge_containers = _timed_method(containers.purge_containers, write=True)
    add_container_files = _method(containers.add_container_files, write=True)
    container_file = _method(containers.get_container_file, write=False)
    find_container_path = _method(containers.find_container_path, write=False)
    page_container_files = _method(containers.page_container_files, write=False)
    delete_container_file = _method(containers.delete_container_file, write=True)

    add_skill = _method(skills.add_skill, write=True)
    add_skill_version = _method(skills.add_skill_version, write=True)
    skill = _method(skills.get_skill, write=False)
    page_skills = _method(skills.page_skills, write=False)
    skill_version = _method(skills.get_skill_version, write=False)
    page_skill_versions = _method(skills.page_skill_versions, write=False)
    set_default_version = _method(skills.set_default_version, write=True)
    delete_skill = _method(skills.delete_skill, write=True)
    delete_skill_version = _method(skills.delete_skill_version, write=True)

    create_vector_store = _text_method(vector_files.create_vector_store, write=True)
    vector_store = _method(vector_stores.get_vector_store, write=False)
    page_vector_stores = _method(vector_stores.page_vector_stores, write=False)
    update_vector_store = _method(vector_stores.update_vector_store, write=True)
    touch_vector_store = _timed_method(vector_stores.touch_vector_store, write=True)
    delete_vector_store = _method(vector_stores.delete_vector_store, write=True)
    expire_vector_stores = _timed_method(vector_stores.expire_vector_stores, write=True)
    vector_store_version = _timed_method(vector_stores.find_version, write=False)
    add_vector_files = _timed_method(vector_files.add_vector_files, write=True)
    vector_file = _method(vector_files.get_vector_file, write=False)
    page_vector_files = _method(vector_files.page_vector_files, write=False)
    set_vector_attributes = _method(vector_files.set_vector_attributes, write=True)
    remove_vector_file = _method(vector_files.remove_vector_file, write=True)
    vector_store_is_indexed = _method(vector_files.is_indexed, write=False)
    vector_batch = _method(vector_files.get_vector_batch, write=False)
    cancel_vector_batch = _method(vector_files.cancel_vector_batch, write=True)
    has_vector_jobs = _timed_method(vector_jobs.has_vector_jobs, write=False)
    claim_vector_files = _timed_method(vector_jobs.claim_vector_files, write=True)
    renew_vector_files = _method(vector_jobs.renew_vector_files, write=True)
    release_vector_file = _method(vector_jobs.release_vector_file, write=True)
    write_chunks = _text_method(vector_jobs.write_chunks, write=True)
    finish_vector_file = _method(vector_jobs.finish_vector_file, write=True)
    reindex_vector_files = _method(vector_jobs.reindex_vector_files, write=True)
    index_words_again = _text_method(vector_jobs.index_words_again, write=True)
    purge_vector_chunks = _text_method(vector_jobs.purge_vector_chunks, write=True)
    page_chunks = _method(vector_chunks.page_chunks, write=False)
    list_searchable_files = _method(vector_chunks.list_searchable_files, write=False)
    load_vectors = _method(vector_chunks.load_vectors, write=False)
    read_vectors = _method(vector_chunks.read_vectors, write=False)
    read_chunks = _method(vector_chunks.read_chunks, write=False)
    add_points = _method(vector_points.add_points, write=True)
    count_points = _method(vector_points.count_points, write=False)
    find_points = _method(vector_points.find_points, write=True)  # with settings of the transaction
    search_text = _text_method(vector_chunks.search_text, write=False)

    add_api_key = _method(keys.add_api_key, write=True)
    find_api_keys = _method(keys.find_api_keys, write=False)
    has_api_keys = _method(keys.has_api_keys, write=False)
    revoke_api_key = _timed_method(keys.revoke_api_key, write=True)
    shared = _method(keys.get_or_insert_shared, write=True)
    api_keys = _method(keys.list_api_keys, write=False)
    page_api_keys = _method(keys.page_api_keys, write=False)

    sweep = _timed_method(deletion.sweep, write=True)
    tenants = _method(totals.list_tenants, write=False)
    add_usage = _method(totals.add_usage, write=True)
    usage = _method(totals.list_usage, write=False)
