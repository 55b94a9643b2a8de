"""History → chat messages and tool schemas. This is the only module that walks over items to build a prompt.

Every item is rendered, taken as a declaration of tools, or rejected by name; none is dropped silently. The exception is
reasoning: that of finished turns is left out, and all of it for models without reasoning. An image in a tool output
does not end a conversation with a text-only model: it is replaced by a note to the model and reported to the client.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import groupby
from typing import Any, Final, get_args

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.code_approvals import is_code_request
from antiphon.core.history.history import History, ToolCallItem, ToolOutputItem, answered_call_id, is_output
from antiphon.core.prompt import ChatPrompt, Json
from antiphon.core.skills import OfferedSkill, describe_skills
from antiphon.errors import UnsupportedParameter
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import InputImage, InputText, MessagePart, OutputText
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonSchemaFormat, TextConfig
from antiphon.render import transcript
from antiphon.render.content import AttachmentLookup, ContentRenderer, Features
from antiphon.render.template.variables import build_template_variables
from antiphon.render.tools.client_tools import SHELL
from antiphon.render.tools.computer import OLD_SCREENSHOT, find_first_screenshot, show_screen_size
from antiphon.render.tools.declarations import offer_tools
from antiphon.render.tools.offered_tools import HostedToolLookup, OfferedTools, no_hosted_tool
from antiphon.render.tools.tool_choice import apply_tool_choice
from antiphon.render.tools.tool_results import ApprovalHistory, VisibleImages, show_generated_images, strip_binary_data

VERBOSITY: Final = {"low": "Keep your answers short.", "medium": "", "high": "Answer at length and in detail."}
_INSTRUCTION_ROLES: Final = frozenset({"system", "developer"})
NO_OUTPUT: Final = "[no output]"  # servers and templates require an output for each call


class RenderedChat(Struct, frozen=True):
    """A rendered prompt and the tools it offers."""

    prompt: ChatPrompt
    offered: OfferedTools  # callable tools; `ignored` names the kinds of tools that are not offered


def render_chat(
    history: History,
    request: CreateResponse,
    features: Features,
    attachments: AttachmentLookup,
    lookup_hosted: HostedToolLookup = no_hosted_tool,
) -> RenderedChat:
    """Render a history as a chat prompt.

    `features` holds names from the engine's capabilities. Those that matter here are tools, reasoning.effort,
    input_image, input_audio, developer (the role), phase (of assistant messages) and
    text.format.description. Attachments that are not in `attachments` are recorded there, and the prompt is then
    incomplete.
    """
    declared = offer_tools(request, history, lookup_hosted)
    chosen = apply_tool_choice(request, declared)
    variables = build_template_variables(request)
    renderer = _ItemRenderer(history, declared, request, features, attachments)
    messages, offered = renderer.render(request.instructions), chosen.offered
    if renderer.screenshot:
        offered = show_screen_size(offered, renderer.screenshot)
    note = _render_text_options(request.text, features)
    if note or not messages or messages[0]["role"] in _INSTRUCTION_ROLES:
        messages = _merge_instructions(messages, note)
    prompt = ChatPrompt(
        messages=tuple(messages),
        tools=offered.chat_tools,
        tool_choice=chosen.choice,
        parallel_tool_calls=request.parallel_tool_calls,
        template_kwargs=variables,
        recipients=offered.collect_recipients(),
    )
    if renderer.images_omitted:
        offered = replace(offered, ignored=(*offered.ignored, "input_image"))
    return RenderedChat(prompt, offered)


def show_skills(chat: RenderedChat, skills: Sequence[OfferedSkill]) -> RenderedChat:
    """Put the skills before the text of the first user message: they have no more authority than a user."""
    messages, note = [*chat.prompt.messages], describe_skills(skills)
    if (index := next((n for n, message in enumerate(messages) if message["role"] == "user"), None)) is None:
        start = next((n for n, message in enumerate(messages) if not _is_instruction(message)), len(messages))
        messages.insert(start, {"role": "user", "content": note})
    else:
        content = messages[index]["content"]
        is_text = isinstance(content, str)
        content = f"{note}\n\n{content}" if is_text else [{"type": "text", "text": note}, *content]
        messages[index] = {**messages[index], "content": content}
    return replace(chat, prompt=replace(chat.prompt, messages=(*messages,)))


def _render_text_options(text: TextConfig, features: Features) -> str:
    """Return instructions for the verbosity and the description of the format.

    Servers accept the description in `response_format`, but only gpt-oss's prompt shows it to the model.
    """
    sentences = [VERBOSITY[text.verbosity]]
    if isinstance(text.format, JsonSchemaFormat) and "text.format.description" not in features:
        sentences.append(f"About the JSON of the answer: {text.format.description}" if text.format.description else "")
    return "\n\n".join(filter(None, sentences))


def _merge_instructions(messages: Sequence[Json], note: str) -> list[Json]:
    """Merge leading instructions of one role into one message: many chat templates accept no second system message."""
    count = next((n for n, message in enumerate(messages) if not _is_instruction(message)), len(messages))
    head: list[Json] = []
    for role, run in groupby(messages[:count], key=lambda message: str(message["role"])):
        head.append({"role": role, "content": "\n\n".join([message["content"] for message in run])})
    if note and head:
        head[-1]["content"] += f"\n\n{note}"
    elif note:
        head = [{"role": "system", "content": note}]
    return [*head, *messages[count:]]


def _is_instruction(message: Json) -> bool:
    return message["role"] in _INSTRUCTION_ROLES and isinstance(message["content"], str)


class _ItemRenderer:
    """Renders the items of one history, one after the other."""

    def __init__(
        self,
        history: History,
        offered: OfferedTools,
        request: CreateResponse,
        features: Features,
        attachments: AttachmentLookup,
    ) -> None:
        self._history = history
        self._offered = offered
        self._request = request
        self._features = features
        self._render_content = ContentRenderer(features, attachments, request.tools).render
        self._transcript = transcript.Transcript(supports_tools="tools" in features)
        self._pending_reasoning: list[str] = []
        self.screenshot = ""  # data URL of the latest one
        self.images_omitted = False  # a client tool returned an image that the model cannot see; a note replaced it

    # The following are computed when an item needs them: most histories have messages only.

    @cached_property
    def _outputs(self) -> dict[str | int, int]:
        return _index_outputs(self._history)

    @cached_property
    def _approvals(self) -> ApprovalHistory:
        return ApprovalHistory(self._history.items)

    @cached_property
    def _visible_images(self) -> VisibleImages:
        return VisibleImages(self._history.tool_outputs, accepts_images="input_image" in self._features)

    @cached_property
    def _first_screenshot(self) -> int:
        return find_first_screenshot(self._history.items)

    @cached_property
    def _generated_images(self) -> Mapping[int, Sequence[MessagePart]]:
        return show_generated_images(self._history.items) if "input_image" in self._features else {}

    @cached_property
    def _reasoning_start(self) -> int:
        """Index of the first item whose reasoning is rendered."""
        if "reasoning.effort" not in self._features:
            return len(self._history.items)
        return 0 if self._request.reasoning.context == "all_turns" else _find_current_turn(self._history)

    def render(self, instructions: str | None) -> list[Json]:
        if instructions:
            self._transcript.add_message("system", instructions)
        for index, item in enumerate(self._history.items):
            _find_method(type(item))(self, index, item)
        return self._transcript.finish()

    def _add_message(self, index: int, item: it.Message) -> None:
        from_assistant, parts = item.role == "assistant", item.content
        content: transcript.Content
        if len(parts) == 1 and isinstance(part := parts[0], (InputText, OutputText)):
            content = part.text
        else:
            content = self._render_content(
                parts,
                "" if from_assistant else "\n",
                lambda part, field: self._history.param(index, f".content[{part}]{field}"),
            )
        if from_assistant:
            phase = "" if item.phase is UNSET or "phase" not in self._features else item.phase
            self._transcript.add_assistant(content, self._pop_reasoning(), phase)
            return
        self._pending_reasoning.clear()  # no assistant message followed it
        as_system = item.role == "developer" and "developer" not in self._features
        self._transcript.add_message("system" if as_system else item.role, content)

    def _add_reasoning(self, index: int, item: it.Reasoning) -> None:
        """Collect reasoning for the next assistant message.

        Content encrypted by this server is decrypted by now; of other encrypted content only the summary is readable.
        """
        if index >= self._reasoning_start:
            raw = "".join([part.text for part in item.content or ()])
            self._pending_reasoning += [raw] if raw else [part.text for part in item.summary]

    def _pop_reasoning(self) -> str:
        reasoning = "\n\n".join(self._pending_reasoning)
        self._pending_reasoning.clear()
        return reasoning

    def _add_server_call(self, index: int, item: transcript.ServerCall) -> None:
        """Add a call that a server ran, with the output the model saw at the time while that is still stored."""
        call_id = _make_call_id(index) if item.id is UNSET else item.id
        call, output = transcript.render_server_call(item, self._offered, call_id)
        recorded = self._history.tool_outputs.get(call_id) or strip_binary_data(output)
        content: transcript.Content
        if isinstance(item, it.ImageGenerationCall) and (parts := self._generated_images.get(id(item))) is not None:
            content = self._render_content(parts, "\n", lambda part, field: self._history.param(index, ".result"))
        elif isinstance(recorded, str):
            content = recorded
        else:
            content = self._render_parts(index, self._visible_images.replace_hidden(recorded))
        self._transcript.add_call(call, content, self._pop_reasoning())
        self._transcript.end_calls()

    def _render_parts(self, index: int, parts: Sequence[MessagePart]) -> transcript.Content:
        return self._render_content(parts, "\n", lambda part, field: self._history.param(index, field))

    def _add_call(self, index: int, item: ToolCallItem) -> None:
        call = transcript.render_client_call(item, self._offered, _make_call_id(index))
        output = self._outputs.get(index if item.call_id is None else item.call_id)
        if output is None and isinstance(item, it.LocalShellCall) and item.id is not UNSET:
            output = self._outputs.get(item.id)
        self._transcript.add_call(call, self._render_output(output), self._pop_reasoning())

    def _render_output(self, index: int | None) -> transcript.Content:
        if index is None:
            return NO_OUTPUT
        output = self._history.items[index]
        assert isinstance(output, ToolOutputItem)
        content = transcript.render_call_output(output, self._offered)
        if isinstance(output, it.ShellCallOutput):  # of a command that the server ran, with the files that it wrote
            content = self._history.tool_outputs.get(str(output.id), content)
        if isinstance(content, str):
            return content
        if isinstance(output, it.ComputerCallOutput):  # its output is a single part
            return OLD_SCREENSHOT if index < self._first_screenshot else self._render_screenshot(content, index)
        if "input_image" not in self._features and any(isinstance(part, InputImage) for part in content):
            self.images_omitted = True
            content = self._visible_images.replace_hidden(content)
        return self._render_content(
            content, "", lambda part, field: self._history.param(index, f".output[{part}]{field}")
        )

    def _render_screenshot(self, parts: Sequence[MessagePart], index: int) -> transcript.Content:
        content = self._render_content(parts, "", lambda part, field: self._history.param(index, f".output{field}"))
        self.screenshot = content[0]["image_url"]["url"]  # type: ignore[index]  # an image is no text
        return content

    def _add_approval_request(self, index: int, item: it.McpApprovalRequest) -> None:
        if (outcome := self._approvals.describe_outcome(item)) is not None:
            call_id = _make_call_id(index) if item.id is UNSET else item.id
            call = transcript.RenderedCall(call_id, self._find_requested_name(item), item.arguments)
            self._transcript.add_call(call, outcome, self._pop_reasoning())

    def _find_requested_name(self, item: it.McpApprovalRequest) -> str:
        if not is_code_request(item) or (item.server_label, item.name) in self._offered.names:
            return self._offered.find_name(item.name, item.server_label)
        return self._offered.find_client_tool_name(item.name) if item.name == SHELL else item.name

    def _end_calls(self, index: int, item: it.InputItem) -> None:
        """Skip an item that is rendered with its call."""
        self._transcript.end_calls()

    def _skip(self, index: int, item: it.InputItem) -> None:
        """Skip a declaration of tools, which render/tools/declarations.py handles."""

    def _reject(self, index: int, item: it.InputItem) -> None:
        kind = str(item.__struct_config__.tag)
        raise UnsupportedParameter(f"This server does not support {kind} items yet.", param=self._history.param(index))


_AddItem = Callable[[_ItemRenderer, int, Any], None]
# A table, since a match statement would compare the type of each item with those of all cases before its own.
_METHODS: Final[dict[type, _AddItem]] = {
    **dict.fromkeys(get_args(ToolCallItem), _ItemRenderer._add_call),
    **dict.fromkeys(get_args(ToolOutputItem), _ItemRenderer._end_calls),
    **dict.fromkeys(get_args(transcript.ServerCall), _ItemRenderer._add_server_call),
    **dict.fromkeys((it.AdditionalTools, it.McpListTools), _ItemRenderer._skip),
    **dict.fromkeys(
        (it.ItemReference, it.Compaction, it.CompactionTrigger, it.ConfigurationUpdate), _ItemRenderer._reject
    ),
    it.Message: _ItemRenderer._add_message,
    it.Reasoning: _ItemRenderer._add_reasoning,
    it.McpApprovalRequest: _ItemRenderer._add_approval_request,
    it.McpApprovalResponse: _ItemRenderer._end_calls,
}


@cache
def _find_method(kind: type[it.InputItem]) -> _AddItem:
    """Return the method for items of a type; compaction has subclasses of its own."""
    return next(_METHODS[base] for base in kind.__mro__ if base in _METHODS)


def _index_outputs(history: History) -> dict[str | int, int]:
    """Map each call id to the index of its output.

    A tool search that a server ran has no id: its output is the next item, so the key is the index of the call.
    """
    found: dict[str | int, int] = {}
    for index, item in enumerate(history.items):
        if is_output(item):
            call_id = answered_call_id(item)
            found[index - 1 if call_id is None else call_id] = index
    return found


def _make_call_id(index: int) -> str:
    """Make an id for a call without one, for servers that require it."""
    return f"past_{index}"


def _find_current_turn(history: History) -> int:
    """Return the index of the first item after the last user message."""
    users = (n for n, item in enumerate(history.items) if isinstance(item, it.Message) and item.role == "user")
    return max(users, default=-1) + 1
