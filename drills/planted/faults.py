"""The planted faults. One fault serves all drills that must find it."""

import re

from msgspec import Struct


class PlantedFault(Struct, frozen=True, kw_only=True):
    """One rule of the server that does not hold: a passage of a module, which occurs in it once, is replaced."""

    name: str
    drills: tuple[str, ...]
    module: str
    old: str
    new: str
    violation: str  # regular expression of a violation that it causes

    def apply(self, source: str) -> str:
        """Return the source with the fault. Raises ValueError if the server has changed and the fault no longer
        applies.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(
                f"the fault {self.name!r} does not apply: {self.module} contains its passage {count} times"
            )
        return source.replace(self.old, self.new)

    def causes(self, violation: str) -> bool:
        return re.search(self.violation, violation) is not None


_FAULTS = (
    PlantedFault(
        name="an id is looked up without its tenant",
        drills=("tenants-sqlite", "tenants-postgres"),
        module="antiphon.stores.sql.responses",
        old='VISIBLE = "tenant = $1 AND id = $2',
        new="VISIBLE = \"$1 <> '' AND id = $2",
        violation=r"beta|alpha",
    ),
    PlantedFault(
        name="a field of the wrong type is an unexpected exception",
        drills=("fuzz-sqlite", "fuzz-postgres", "bombs"),
        module="antiphon.protocol.decoding.codec",
        old="raise explain(error, raw, self._body_type) from None",
        new="raise",
        violation=r"500",
    ),
    PlantedFault(
        name="SQLite forgets the metadata of a conversation",
        drills=("bombs-twins",),
        module="antiphon.stores.sqlite_connection",
        old='sqlite_text = re.sub(r"\\$(\\d+)", r"?\\1", text)',
        new='sqlite_text = re.sub(r"\\$(\\d+)", r"?\\1", text.replace("metadata = $3", "metadata = \'{}\'"))',
        violation=r"a conversation about .*, GET /v1/conversations/@:",
    ),
    PlantedFault(
        name="responses outlive the WebSocket of their client",
        drills=("bombs-failures",),
        module="antiphon.transport.websocket.connection",
        old="""        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])
""",
        new="",
        violation=r"resources grew after failures: tasks",
    ),
    PlantedFault(
        name="responses with store: false are stored",
        drills=("bombs-schemas",),
        module="antiphon.service.responses",
        old="if not planned.opening.store:",
        new="if False:",
        violation=r"disk bytes",
    ),
    PlantedFault(
        name="loopback addresses may be connected to",
        drills=("egress",),
        module="antiphon.egress.policy",
        old="if any(rule.allows(url, address) for rule in self._rules):",
        new="if address.is_loopback or any(rule.allows(url, address) for rule in self._rules):",
        violation=r"127\.0\.0\.1.* was answered with 200",
    ),
    PlantedFault(
        name="system calls of containers are not filtered",
        drills=("sandbox",),
        module="antiphon.sandbox.local",
        old='_BOOT = Path(__file__).with_name("worker") / "boot.py"',
        new='_BOOT = __import__("drills.sandbox.worker_copy", fromlist=["x"]).copy_without_seccomp()',
        violation=r"system call .* was not refused",
    ),
    PlantedFault(
        name="code in a container reaches hosts that are not in its allow-list",
        drills=("sandbox",),
        module="antiphon.egress.proxy",
        old="if url.address is not None or not self._allowed.covers(url.host):",
        new="if False:",
        violation=r"CONNECT other\.test.* was not refused",
    ),
    PlantedFault(
        name="credentials that an MCP server repeats are passed on",
        drills=("secret-sqlite", "secret-postgres", "mcp"),
        module="antiphon.tools.mcp.servers",
        old="return sorted(found, key=len, reverse=True)",
        new="return []",
        violation=r" is in (answer|stream|replay|GET)|contains the secret",
    ),
    PlantedFault(
        name="the log contains what a request says",
        drills=("canaries",),
        module="antiphon.service.responses",
        old="        if decoded.request.background:\n",
        new="        __import__('logging').getLogger('antiphon').debug('%s', decoded.request.input)\n"
        "        if decoded.request.background:\n",
        violation=r"a secret is in the log",
    ),
    PlantedFault(
        name="control strings are not escaped",
        drills=("forgery",),
        module="antiphon.render.control_token_escape",
        old="return _CONTROL.insert_gaps(text)",
        new="return text",
        violation=r"forge",
    ),
    PlantedFault(
        name="an answer that breaks off is complete",
        drills=("upstream", "engine-kills"),
        module="antiphon.engines.http.readers.completion_reader",
        old='raise EngineFailed(f"{self._label} stopped in the middle of its answer.")',
        new='self._finish = "stop"',
        violation=r"although the engine had not ended it|is completed with the text",
    ),
    PlantedFault(
        name="an end that cannot be stored is reported as stored",
        drills=("nth-failure",),
        module="antiphon.agent.run",
        old="if store_error is not None and self.error is None:",
        new="if False:",
        violation=r"acknowledged and is lost|is stuck|answered with 200 and b''",
    ),
    PlantedFault(
        name="a replay begins one event too early",
        drills=("replays-sqlite", "replays-postgres", "pairs-postgres", "pairs-redis"),
        module="antiphon.transport.endpoints.stored_responses",
        old="after = -1 if query.starting_after is None else query.starting_after",
        new="after = -1 if query.starting_after is None else query.starting_after - 1",
        violation=r" from 0: 200|resume: InvalidStream",
    ),
    PlantedFault(
        name="an Idempotency-Key is forgotten",
        drills=("idempotency-sqlite", "idempotency-postgres"),
        module="antiphon.stores.sql.keys",
        old="return str(holder)",
        new="return None",
        violation=r"one key created",
    ),
    PlantedFault(
        name="a turn is not added to its conversation",
        drills=("replicas",),
        module="antiphon.service.persistence.response_writer",
        old="items=rows.list_conversation_items(request, response),",
        new="items=[],",
        violation=r"conversation",
    ),
    PlantedFault(
        name="an end is written without comparing the fence",
        drills=("zombie-sqlite", "zombie-postgres", "zombie-redis"),
        module="antiphon.stores.sql.responses",
        old="    if fence != end.fence:\n        raise OwnershipLost(end.id)\n",
        new="",
        violation=r"was ended under (several fences|the fence \d+, but taken over)",
    ),
    PlantedFault(
        name="an approval can be used more than once",
        drills=("loop-sqlite", "loop-postgres", "loop-zombie"),
        module="antiphon.stores.sql.keys",
        old='    yield sql("UPDATE approvals SET used = 1 WHERE tenant = $1 AND id = $2", tenant, request_id)\n',
        new="",
        violation=r"one approval caused \d+ effects",
    ),
    PlantedFault(
        name="events are sent before they are stored",
        drills=("kill9-sqlite", "kill9-postgres", "kill9-redis"),
        module="antiphon.service.persistence.live_updates",
        old="            await self._append([*islice(",
        new="            show(self._written_lists + len(gathered))\n"
        "            await asyncio.sleep(0.1)\n            await self._append([*islice(",
        violation=r"the received events differ from the replay",
    ),
    PlantedFault(
        name="a background response of a dead server is not run again",
        drills=("workers-sqlite", "workers-postgres"),
        module="antiphon.service.runs.takeover",
        old="if not row.background or (previous.has_output and read_checkpoint(previous.entries) is None):",
        new="if True:",
        violation=r"background resp_\w+ ended as failed",
    ),
    PlantedFault(
        name="rejections have no Retry-After",
        drills=("overload",),
        module="antiphon.transport.http.error_responses",
        old='(b"retry-after", b"%d" % max(1, math.ceil(seconds))),',
        new="",
        violation=r"a 429 has no Retry-After",
    ),
    PlantedFault(
        name="the tenant with the oldest request keeps its turn",
        drills=("noisy",),
        module="antiphon.admission",
        old="rank.move_to_end(tenant)",
        new="pass",
        violation=r"quiet p50 × alone .* is above the limit",
    ),
    PlantedFault(
        name="a request is not retried on another engine",
        drills=("pool",),
        module="antiphon.engines.pool.pool",
        old="                if started:\n                    raise\n",
        new="                raise\n",
        violation=r"failed before its first token|no run moved",
    ),
    PlantedFault(
        name="commits are not synced",
        drills=("disk",),
        module="antiphon.stores.sqlite_file",
        old='"synchronous": "FULL"',
        new='"synchronous": "OFF"',
        violation=r"the fault did not occur",
    ),
    PlantedFault(
        name="the content of a file is deleted before its row",
        drills=("files-sqlite", "files-postgres"),
        module="antiphon.service.files",
        old="        unused = await self._store.delete_file(tenant, file_id)\n",
        new="        await self._contents.delete([(await self.find(tenant, file_id)).content])\n"
        "        unused = await self._store.delete_file(tenant, file_id)\n",
        violation=r"has a row, but no content",
    ),
    PlantedFault(
        name="chunks of a server that died are forgotten",
        drills=("files-sqlite", "files-postgres"),
        module="antiphon.stores.sql.vector_jobs",
        old="            yield from discard_attempt(ROW, tenant, store, file)\n",
        new="",
        violation=r"chunks of no file after the sweep",
    ),
    PlantedFault(
        name="aborts are two seconds late",
        drills=("disconnects",),
        module="antiphon.transport.http.channel",
        old="self.direct.on_disconnect(self._cancel)",
        new="self.direct.on_disconnect(lambda: asyncio.get_running_loop().call_later(2.0, self._cancel))",
        violation=r"after its client had disconnected",
    ),
    PlantedFault(
        name="an idle WebSocket holds a buffer",
        drills=("sockets",),
        module="antiphon.http_server.ws_protocol",
        old="del self.request, self.response",
        new="self.buffer = bytearray(128 * 1024)",
        violation=r"idle KiB/socket .* is above the limit",
    ),
)

FAULTS = {fault.name: fault for fault in _FAULTS}


def find_faults(drill: str) -> list[PlantedFault]:
    """Return the faults that this drill must find."""
    return [fault for fault in _FAULTS if drill in fault.drills]
