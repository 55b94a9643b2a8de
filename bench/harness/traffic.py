"""Request bodies of the benchmarks: identical ones, varied ones of many applications, and those of a coding agent.

All bodies are a function of the kind and the seed. No varied or agent body occurs twice, and none is sent twice to the
same server, since real clients do not repeat whole requests either.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from typing import Any, Literal

import msgspec
from msgspec import Struct

APPLICATIONS, TOOLS, SESSIONS = 8, 12, 40
VARIED_HISTORIES = (1, 3, 5, 7, 9)  # messages
AGENT_TURNS = range(41, 46)  # consecutive requests of one session, 43 tool turns on average
_OUTPUT_LINES = 127  # of a tool output in an agent's history
_INSTRUCTION_WORDS, _AGENT_INSTRUCTION_WORDS = 300, 2_500
_VOCABULARY = """
the of a to in is that it for on with as this by from or an be are at not which file test function value path
error request response server client token model buffer stream session message string number list object index
return check update read write open close start change remove create module class import option default
"""
_WORDS = _VOCABULARY.split()
_ARGUMENTS = ({"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "string"}})

Json = dict[str, Any]
TrafficKind = Literal["identical", "chat", "varied", "agent", "numbered"]


class Traffic(Struct, frozen=True, kw_only=True):
    """What the requests of a measurement contain. `seed` makes the bodies of two measurements differ."""

    kind: TrafficKind
    model: str
    stream: bool = False
    store: bool = False
    seed: str = ""
    omit: tuple[str, ...] = ()  # fields that the server refuses
    fields: Json = {}  # of all requests; `numbered` adds a message that differs

    def make_bodies(self, count: int) -> list[bytes]:
        common = {"model": self.model, "stream": self.stream, "store": self.store, **self.fields}
        inputs = _MAKERS[self.kind](random.Random(f"{self.kind} {self.seed}"))
        return [self._encode(common, fields) for fields in islice(inputs, count)]

    def _encode(self, common: Json, fields: Json) -> bytes:
        if self.kind == "numbered":
            fields = {"input": [*common.get("input", []), *fields["input"]]}
        return msgspec.json.encode({name: v for name, v in {**common, **fields}.items() if name not in self.omit})


def _numbered_inputs(rng: random.Random) -> Iterator[Json]:
    while True:
        yield {"input": [{"role": "user", "content": f"What is to be done next? {rng.getrandbits(64)}"}]}


def _varied_inputs(rng: random.Random) -> Iterator[Json]:
    """Yield requests of all sessions in turn; a conversation of a session begins anew after its longest history."""
    applications = [make_application(number) for number in range(APPLICATIONS)]
    while True:
        conversations = [_make_conversation(rng, session) for session in range(SESSIONS)]
        for length in VARIED_HISTORIES:
            for session, messages in enumerate(conversations):
                application = applications[session % APPLICATIONS]
                yield {**application, **_session_fields(rng, session), "input": messages[:length]}


def make_application(number: int, instruction_words: int = _INSTRUCTION_WORDS) -> Json:
    """Return the fields that all requests of an application share. They are the same in every measurement."""
    rng = random.Random(f"application {number}")
    return {
        "instructions": _prose(rng, instruction_words),
        "tools": [_make_tool(rng, f"tool_{number}_{at}") for at in range(TOOLS)],
        "tool_choice": "auto",
        "parallel_tool_calls": number % 2 == 0,
        **({"temperature": 0.2 + number / 10} if number % 3 == 0 else {}),
    }


def _make_tool(rng: random.Random, name: str) -> Json:
    kinds = (
        {"type": "string"},
        {"type": "integer"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "string"}},
    )
    properties: Json = {
        f"argument_{at}": {**rng.choice(kinds), "description": _prose(rng, rng.randint(6, 20))}
        for at in range(rng.randint(2, 6))
    }
    properties["mode"] = {"type": "string", "enum": ["fast", "safe"], "description": _prose(rng, 8)}
    parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
    description = _prose(rng, rng.randint(15, 60))
    return {"type": "function", "name": name, "description": description, "strict": False, "parameters": parameters}


def _make_conversation(rng: random.Random, session: int) -> list[Json]:
    """Return alternating messages; applications differ in whether they send texts or lists of parts."""
    as_parts = session % APPLICATIONS % 2 == 1
    messages = []
    for number in range(max(VARIED_HISTORIES)):
        role, kind = ("assistant", "output_text") if number % 2 else ("user", "input_text")
        text = _prose(rng, rng.randint(20, 120))
        messages.append({"role": role, "content": [{"type": kind, "text": text}] if as_parts else text})
    return messages


def _session_fields(rng: random.Random, session: int) -> Json:
    """Return the fields that differ between sessions and requests. The keys of `client_metadata` come in any order, as
    Codex sends them.
    """
    session_id, turn_id = _uuid(random.Random(f"session {session}")), _uuid(rng)
    turn_metadata = {
        "session_id": session_id, "turn_id": turn_id, "request_kind": "turn", "sandbox_mode": "workspace-write",
        "turn_started_at_unix_ms": 1_794_702_126_107 + rng.randrange(10**9), "reasoning_effort": "medium",
    }  # fmt: skip
    client_metadata = [
        ("session_id", session_id),
        ("thread_id", session_id),
        ("turn_id", turn_id),
        ("x-codex-window-id", f"{session_id}:0"),
        ("x-codex-installation-id", _uuid(random.Random(f"installation {session % 10}"))),
        ("x-codex-turn-metadata", msgspec.json.encode(turn_metadata).decode()),
    ]
    rng.shuffle(client_metadata)
    return {
        "prompt_cache_key": session_id,
        "safety_identifier": f"user-{session % 20}",
        "metadata": {"session": session_id, "request": turn_id, "attempt": "1"},
        "client_metadata": dict(client_metadata),
    }


def _agent_inputs(rng: random.Random) -> Iterator[Json]:
    """Yield requests of coding agents in turn: each sends its whole history with every request, and one tool turn more
    than before.
    """
    applications = [make_application(number, _AGENT_INSTRUCTION_WORDS) for number in range(APPLICATIONS)]
    while True:
        histories = [_make_agent_history(rng, number) for number in range(APPLICATIONS)]
        for turns in AGENT_TURNS:
            for number, (application, history) in enumerate(zip(applications, histories, strict=True)):
                yield {**application, **_session_fields(rng, number), "input": history[: 1 + 2 * turns]}


def _make_agent_history(rng: random.Random, number: int) -> list[Json]:
    turns = (_tool_turn(rng, f"tool_{number}_{turn % TOOLS}") for turn in range(AGENT_TURNS[-1]))
    return [{"type": "message", "role": "user", "content": _prose(rng, 60)}, *chain.from_iterable(turns)]


def _tool_turn(rng: random.Random, tool: str) -> list[Json]:
    call_id = f"call_{rng.getrandbits(96):024x}"
    arguments = msgspec.json.encode({"argument_0": _prose(rng, 12), "mode": "safe"}).decode()
    return [
        {"type": "function_call", "call_id": call_id, "name": tool, "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": make_tool_output(rng)},
    ]


def make_tool_output(rng: random.Random) -> str:
    """Return what a coding agent reads at once: about 13 kB, with characters that JSON escapes."""
    return "\n".join(f'{at}:\t    {_prose(rng, 14)}("{at}")' for at in range(_OUTPUT_LINES))


def _prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


_MAKERS: dict[TrafficKind, Callable[[random.Random], Iterator[Json]]] = {
    "identical": lambda _: repeat({"input": "hi"}),
    "chat": lambda _: repeat({"messages": [{"role": "user", "content": "hi"}]}),
    "varied": _varied_inputs,
    "agent": _agent_inputs,
    "numbered": _numbered_inputs,
}
