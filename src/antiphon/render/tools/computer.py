"""The computer, which the client controls: a function whose calls are lists of actions, or one action in the preview.

    declared                offered                 item
    computer                computer(actions)       computer_call with `actions`
    computer_use_preview    computer(action)        computer_call with `action`

Points must be on the screen: the declared display, or the latest screenshot. The offered schema fits OpenAI's rules for
strict functions, so an engine that supports them writes nothing else. Calls of other engines are accepted without the
fields that have a default, and with an action that is not in a list or not in a field of its own.

Of a long session the latest screenshots are shown, within limits. Older ones are left out several at a time, so that in
most turns the beginning of the prompt stays as it was, and in the engine's prefix cache.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.image_generation import take_latest
from antiphon.core.images import measure_data_url
from antiphon.core.prompt import Json
from antiphon.protocol.types import items as it
from antiphon.protocol.types import tools as wire
from antiphon.protocol.types.parts import ComputerAction
from antiphon.render.tools.offered_tools import OfferedTools

COMPUTER, COMPUTER_PREVIEW = "computer", "computer_use_preview"
COMPUTER_KINDS: Final = frozenset({COMPUTER, COMPUTER_PREVIEW})
ENABLE_HINT: Final = "Start the server with --enable-computer-call."

ComputerDeclaration = wire.ComputerTool | wire.ComputerUsePreviewTool

_MAX_SIDE: Final = 65_536  # pixels; of a screen whose size is not known
_MAX_ACTIONS, _MAX_KEYS, _MAX_POINTS = 32, 8, 64
_MAX_SCROLL: Final = 100_000  # pixels
_OMITTED_AT_ONCE: Final = 8  # screenshots
OLD_SCREENSHOT: Final = "[A screenshot, which is not shown again.]"
_OPTIONAL_FIELDS: Final = frozenset({"button", "keys"})

_DESCRIPTION: Final = (
    "Controls the user's computer with mouse and keyboard, and gives back a screenshot. Points are pixels of the "
    "screenshot, from its top left corner; scrolling right and down is positive. `keys`, such as CTRL and A, are "
    "pressed together, or held during an action of the mouse. Look at a screenshot before you act and before you go on."
)
_ENVIRONMENTS: Final = {
    "browser": "a web browser, of which only the page is seen",
    "mac": "macOS",
    "windows": "Windows",
    "linux": "Linux",
    "ubuntu": "Ubuntu Linux",
}
_KEY_LIST: Final[Json] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": _MAX_KEYS}


class Screen(Struct, frozen=True):
    """Width and height in pixels."""

    width: int = _MAX_SIDE
    height: int = _MAX_SIDE


def make_computer_function(tool: ComputerDeclaration, screen: Screen | None = None) -> wire.FunctionTool:
    """Return the function that models are offered. `screen`: the latest screenshot; a declared display counts more."""
    sentences = [_DESCRIPTION]
    if isinstance(tool, wire.ComputerUsePreviewTool):
        screen = Screen(tool.display_width, tool.display_height)
        sentences.append(f"The computer is {_ENVIRONMENTS[tool.environment]}.")
    if screen is not None:
        sentences.append(f"The screen has {screen.width} × {screen.height} pixels.")
    action = {"anyOf": _list_actions(screen or Screen()), "description": "What is to be done."}
    if isinstance(tool, wire.ComputerUsePreviewTool):
        parameters = _make_object(action=action)
    else:
        actions = {"type": "array", "items": action, "minItems": 1, "maxItems": _MAX_ACTIONS}
        parameters = _make_object(actions={**actions, "description": "What is to be done, one after the other."})
    return wire.FunctionTool(name=COMPUTER, description=" ".join(sentences), parameters=parameters, strict=True)


def show_screen_size(offered: OfferedTools, screenshot: str) -> OfferedTools:
    """Limit the points of a computer without a declared display to those of a screenshot, a data URL."""
    name = next((name for name, offer in offered.offers.items() if offer.kind == COMPUTER), None)
    if name is None:
        return offered
    image = measure_data_url(screenshot)
    function = make_computer_function(wire.ComputerTool(), Screen(image.width, image.height))
    parameters = function.parameters
    shown = {**offered.schemas[name]["function"], "description": function.description, "parameters": parameters}
    return replace(
        offered,
        offers={**offered.offers, name: replace(offered.offers[name], parameters=parameters)},
        schemas={**offered.schemas, name: {"type": "function", "function": shown}},
    )


def find_first_screenshot(items: Sequence[it.InputItem]) -> int:
    """Return the index of the first item whose screenshot is shown."""
    found = [(index, item) for index, item in enumerate(items) if isinstance(item, it.ComputerCallOutput)]
    shown = [*take_latest(reversed(found), lambda pair: len(pair[1].output.image_url or ""))]
    omitted = -(-(len(found) - len(shown)) // _OMITTED_AT_ONCE) * _OMITTED_AT_ONCE
    return found[min(omitted, len(found) - 1)][0]


def _list_actions(screen: Screen) -> list[Json]:
    point = {"x": _number(0, screen.width - 1), "y": _number(0, screen.height - 1)}
    held = {"keys": {**_KEY_LIST, "type": ["array", "null"]}}
    path = {"type": "array", "items": _make_object(**point), "minItems": 2, "maxItems": _MAX_POINTS}
    buttons = {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]}
    distance = _number(-_MAX_SCROLL, _MAX_SCROLL)
    return [
        _make_action("screenshot"),
        _make_action("click", button=buttons, **point, **held),
        _make_action("double_click", **point, **held),
        _make_action("move", **point, **held),
        _make_action("scroll", **point, scroll_x=distance, scroll_y=distance, **held),
        _make_action("drag", path=path, **held),
        _make_action("keypress", keys=_KEY_LIST),
        _make_action("type", text={"type": "string"}),
        _make_action("wait"),
    ]


def _make_action(name: str, **fields: Json) -> Json:
    return _make_object(type={"type": "string", "const": name}, **fields)


def _make_object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _number(minimum: int, maximum: int) -> Json:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


_FUNCTIONS: Final = {
    COMPUTER: make_computer_function(wire.ComputerTool()),
    COMPUTER_PREVIEW: make_computer_function(
        wire.ComputerUsePreviewTool(display_width=_MAX_SIDE, display_height=_MAX_SIDE, environment="linux")
    ),
}


def accepted_computer_schema(kind: str, parameters: Json) -> Json:
    """Return the schema that a call must match: the offered one, or its actions in another form.

    Conditions instead of alternatives, so that a validation error names the wrong field.
    """
    offered = (parameters or _FUNCTIONS[kind].parameters or {})["properties"]
    action = _make_lenient(offered["action"] if kind == COMPUTER_PREVIEW else offered["actions"]["items"])
    count = 1 if kind == COMPUTER_PREVIEW else _MAX_ACTIONS
    several = {"type": "array", "items": action, "minItems": 1, "maxItems": count}
    alone = {"if": {"required": ["type"]}, "then": action, "else": {"required": [*offered]}}
    single = {"if": {"required": ["action"]}, "then": {"properties": {"action": action}}, "else": alone}
    return {
        "type": "object",
        "if": {"required": ["actions"]},
        "then": {"properties": {"actions": several}},
        "else": single,
    }


def _make_lenient(action: Json) -> Json:
    """Return a schema for one action. Keys must not be empty, which the rules for strict functions cannot express."""
    kinds = {variant["properties"]["type"]["const"]: variant for variant in action["anyOf"]}
    keys = {"keys": {"items": {"minLength": 1}}}
    return {
        "type": "object",
        "properties": {"type": {"enum": [*kinds]}},
        "required": ["type"],
        "allOf": [
            {
                "if": {"properties": {"type": {"const": name}}},
                "then": {**variant, "required": _require(name, variant["required"]), "allOf": [{"properties": keys}]},
            }
            for name, variant in kinds.items()
        ],
    }


def _require(name: str, fields: Sequence[str]) -> list[str]:
    return [field for field in fields if name == "keypress" or field not in _OPTIONAL_FIELDS]


def build_computer_call(kind: str, arguments: Json, status: it.Status) -> it.ComputerCall:
    """Build the item of valid arguments."""
    written = arguments.get("actions") or arguments.get("action") or (arguments if "type" in arguments else [])
    actions = [_to_action(action) for action in (written if isinstance(written, list) else [written])]
    if kind == COMPUTER:
        return it.ComputerCall(call_id="", status=status, actions=actions)
    return it.ComputerCall(call_id="", status=status, action=actions[0] if actions else UNSET)


def _to_action(written: Json) -> ComputerAction:
    """Convert a valid action. It is not strict, because 3.0 is an integer in JSON Schema."""
    fields = {name: value for name, value in written.items() if value is not None}
    if fields["type"] == "click":
        fields.setdefault("button", "left")
    return msgspec.convert(fields, ComputerAction, strict=False)  # type: ignore[no-any-return]  # a union


def computer_call_arguments(item: it.ComputerCall) -> dict[str, Any]:
    """Return the arguments of a call in the form offered to the model."""
    if item.actions is not UNSET:
        return {"actions": item.actions}
    return {} if item.action is UNSET else {"action": item.action}
