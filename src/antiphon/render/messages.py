"""History → chat messages and tool schemas. Nothing else walks over items to make a prompt.

Every item is said, taken as a declaration of tools, or refused by name; none gets lost. Reasoning
alone may be left out: that of turns that are over, and all of it for models that do not think. A picture that a tool
gave does not end a conversation with a model that cannot see: the model is told, and so is the client.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, assert_never

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.history.history import Call, History, Output, answers, is_output
from antiphon.core.prompt import ChatPrompt, Json
from antiphon.errors import UnsupportedParameter
from antiphon.protocol.types.items import (
    AdditionalTools,
    CodeInterpreterCall,
    Compaction,
    CompactionTrigger,
    ComputerCallOutput,
    ConfigurationUpdate,
    FileSearchCall,
    ImageGenerationCall,
    InputImage,
    InputItem,
    InputText,
    ItemReference,
    LocalShellCall,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    MessagePart,
    OutputText,
    Reasoning,
    WebSearchCall,
)
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.attachments import Attached
from antiphon.render.content import Beholder, Honours
from antiphon.render.template.variables import template_variables
from antiphon.render.tools.declarations import Hosting, Offered, nothing_hosted, offer_tools
from antiphon.render.tools.past_calls import Called, ServerCall, called, ran, returned
from antiphon.render.tools.tool_choice import choose
from antiphon.render.tools.tool_results import Asked, Shown, without_data
from antiphon.render.transcript import Content, Transcript

VERBOSITY: Final = {"low": "Keep your answers short.", "medium": "", "high": "Answer at length and in detail."}
_INSTRUCTING: Final = frozenset({"system", "developer"})
UNANSWERED: Final = "[no output]"  # servers and templates want an output for each call


class Frame(Struct, frozen=True):
    """A prompt without what is said in it."""

    chat: ChatPrompt
    declared: Offered
    offered: Offered  # what of it may be called


class Rendered(Struct, frozen=True):
    prompt: ChatPrompt
    offered: Offered  # what may be called; its `ignored` names the kinds of tools that are not offered
    frame: Frame


def framed(request: CreateResponse, history: History, hosting: Hosting = nothing_hosted) -> Frame:
    """The same for all histories that declare no tools."""
    declared = offer_tools(request, history, hosting)
    chosen = choose(request, declared)
    chat = ChatPrompt(
        messages=(),
        tools=tuple(chosen.offered.schemas.values()),
        tool_choice=chosen.choice,
        parallel_tool_calls=request.parallel_tool_calls,
        template_kwargs=template_variables(request),
        recipients=chosen.offered.recipients(),
    )
    return Frame(chat, declared, chosen.offered)


def render_chat(
    history: History, request: CreateResponse, honours: Honours, attached: Attached, frame: Frame | None = None
) -> Rendered:
    """`honours` are the names in the engine's capabilities; here count tools, reasoning.effort, input_image,
    input_audio, developer (the role) and phase (of what an assistant said). What `attached` lacks is noted there,
    and the prompt is not whole. `frame`: as it is for this request and history, if that is known."""
    frame = frame or framed(request, history)
    offered, instructions = frame.offered, request.instructions
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    for item in history.items:  # in single texts, as most are, it is told at a fifth of what a walk costs
        if (
            type(item) is not Message
            or len(item.content) != 1
            or (type(part := item.content[0]) is not InputText and type(part) is not OutputText)
        ):
            messages, offered = _walked(history, request, honours, attached, frame)
            break
        plain = item.role == "developer" and "developer" not in honours
        messages.append({"role": "system" if plain else item.role, "content": part.text})
        if item.phase is not UNSET and "phase" in honours:
            messages[-1]["phase"] = item.phase
    sentence = VERBOSITY[request.text.verbosity]
    if sentence or not messages or messages[0]["role"] in _INSTRUCTING:
        messages = _headed(messages, sentence)
    return Rendered(replace(frame.chat, messages=tuple(messages)), offered, frame)


def _walked(
    history: History, request: CreateResponse, honours: Honours, attached: Attached, frame: Frame
) -> tuple[list[Json], Offered]:
    """Whatever there is in it. A conversation in single texts comes to the same."""
    all_turns = request.reasoning.context == "all_turns"
    walk = _Walk(history, frame.declared, honours, Beholder(honours, attached), all_turns=all_turns)
    messages, offered = walk.messages(request.instructions), frame.offered
    return messages, replace(offered, ignored=(*offered.ignored, "input_image")) if walk.unseen else offered


def _headed(messages: Sequence[Json], sentence: str) -> list[Json]:
    """Instructions that stand together at the top become one message: many templates take no second one."""
    count = next((n for n, message in enumerate(messages) if not _instructs(message)), len(messages))
    head: list[Json] = []
    for role, run in groupby(messages[:count], key=lambda message: str(message["role"])):
        head.append({"role": role, "content": "\n\n".join([message["content"] for message in run])})
    if sentence and head:
        head[-1]["content"] += f"\n\n{sentence}"
    elif sentence:
        head = [{"role": "system", "content": sentence}]
    return [*head, *messages[count:]]


def _instructs(message: Json) -> bool:
    return message["role"] in _INSTRUCTING and isinstance(message["content"], str)


class _Walk:
    def __init__(
        self, history: History, offered: Offered, honours: Honours, beholder: Beholder, *, all_turns: bool
    ) -> None:
        self._history = history
        self._offered = offered
        self._honours = honours
        self._content = beholder.content
        self._transcript = Transcript(knows_tools="tools" in honours)
        self._outputs = _outputs(history)
        self._asked = Asked(history.items)
        self._shown = Shown(history.said, sees="input_image" in honours)
        self._thinks_from = len(history.items)
        if "reasoning.effort" in honours:
            self._thinks_from = 0 if all_turns else _current_turn(history)
        self._thoughts: list[str] = []
        self.unseen = False  # a tool of the client's gave a picture that the model cannot see, and is told so

    def messages(self, instructions: str | None) -> list[Json]:
        if instructions:
            self._transcript.say("system", instructions)
        for index, item in enumerate(self._history.items):
            self._take(index, item)
        return self._transcript.finish()

    def _take(self, index: int, item: InputItem) -> None:
        match item:
            case Message():
                self._message(index, item)
            case Reasoning():
                self._reasoning(index, item)
            case McpCall() | WebSearchCall() | FileSearchCall() | CodeInterpreterCall() | ImageGenerationCall():
                self._ran(index, item)
            case McpApprovalRequest():
                self._request(index, item)
            case McpApprovalResponse():
                self._transcript.end_calls()  # it was told with its call
            case AdditionalTools() | McpListTools():
                pass  # render/tools/declarations.py takes these
            case ItemReference() | Compaction() | CompactionTrigger() | ConfigurationUpdate():
                raise self._unsupported(index, item)
            case _ if isinstance(item, Call):
                self._call(index, item)
            case _ if isinstance(item, Output):
                self._transcript.end_calls()  # it was told with its call
            case _:
                assert_never(item)

    def _message(self, index: int, item: Message) -> None:
        spoken = item.role == "assistant"
        content = self._content(
            item.content,
            "" if spoken else "\n",
            lambda part, field: self._history.param(index, f".content[{part}]{field}"),
        )
        if spoken:
            phase = "" if item.phase is UNSET or "phase" not in self._honours else item.phase
            self._transcript.answer(content, self._take_thought(), phase)
            return
        self._thoughts.clear()  # they led to nothing
        plain = item.role == "developer" and "developer" not in self._honours
        self._transcript.say("system" if plain else item.role, content)

    def _reasoning(self, index: int, item: Reasoning) -> None:
        """What was sealed here is open by now; of what was sealed elsewhere only the summary can be read."""
        if index >= self._thinks_from:
            raw = "".join([part.text for part in item.content or ()])
            self._thoughts += [raw] if raw else [part.text for part in item.summary]

    def _take_thought(self) -> str:
        thought = "\n\n".join(self._thoughts)
        self._thoughts.clear()
        return thought

    def _ran(self, index: int, item: ServerCall) -> None:
        """What was told of it when it ran is told again while it is remembered."""
        name = _nameless(index) if item.id is UNSET else item.id
        call, output = ran(item, self._offered, name)
        said = self._history.said.get(name) or without_data(output)
        told: Content = said if isinstance(said, str) else self._parts(index, self._shown.parts(said))
        self._transcript.call(call, told, self._take_thought())
        self._transcript.end_calls()

    def _parts(self, index: int, said: Sequence[MessagePart]) -> Content:
        return self._content(said, "\n", lambda part, field: self._history.param(index, field))

    def _call(self, index: int, item: Call) -> None:
        call = called(item, self._offered, _nameless(index))
        output = self._outputs.get(index if item.call_id is None else item.call_id)
        if output is None and isinstance(item, LocalShellCall) and item.id is not UNSET:
            output = self._outputs.get(item.id)
        self._transcript.call(call, self._told(output), self._take_thought())

    def _told(self, index: int | None) -> Content:
        if index is None:
            return UNANSWERED
        output = self._history.items[index]
        assert isinstance(output, Output)
        told = returned(output, self._offered)
        if isinstance(told, str):
            return told
        if isinstance(output, ComputerCallOutput):  # its output is the one part
            return self._content(told, "", lambda part, field: self._history.param(index, f".output{field}"))
        if "input_image" not in self._honours and any(isinstance(part, InputImage) for part in told):
            self.unseen = True
            told = self._shown.parts(told)
        return self._content(told, "", lambda part, field: self._history.param(index, f".output[{part}]{field}"))

    def _request(self, index: int, item: McpApprovalRequest) -> None:
        if (outcome := self._asked.outcome(item)) is not None:
            name = _nameless(index) if item.id is UNSET else item.id
            call = Called(name, self._offered.name_of(item.name, item.server_label), item.arguments)
            self._transcript.call(call, outcome, self._take_thought())

    def _unsupported(self, index: int, item: InputItem) -> UnsupportedParameter:
        kind = str(item.__struct_config__.tag)
        return UnsupportedParameter(f"This server cannot take {kind} items yet.", param=self._history.param(index))


def _outputs(history: History) -> dict[str | int, int]:
    """Where the output of each call is. A search that a server ran has no id: its output is the next item."""
    found: dict[str | int, int] = {}
    for index, item in enumerate(history.items):
        if is_output(item):
            call_id = answers(item)
            found[index - 1 if call_id is None else call_id] = index
    return found


def _nameless(index: int) -> str:
    """An id for the call in this place, for servers that want one."""
    return f"past_{index}"


def _current_turn(history: History) -> int:
    """Where the model took over: after the last thing a user said."""
    users = (n for n, item in enumerate(history.items) if isinstance(item, Message) and item.role == "user")
    return max(users, default=-1) + 1
