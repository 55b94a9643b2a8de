"""Items of what the server does, from their beginning until they ran or were cut short.

They stay open while the model goes on speaking. An end changes nothing in them: one that could not be kept is told
again, in other words.
"""

from msgspec.structs import replace

from antiphon.core.deltas import CallStarted, ServerItem
from antiphon.core.open_parts import Out
from antiphon.core.server_items import KINDS, begun, cut_short, ended, item_added
from antiphon.errors import EngineFailed
from antiphon.protocol import events as ev
from antiphon.protocol.items import McpCall

GONE_ON = "The engine went on with a tool call after it had said something else."


class OpenServerItem:
    """All that is known of it before it ran is known at once."""

    def __init__(self, item_id: str, index: int, item: ServerItem) -> None:
        self.id = item_id
        self._place = item_id, index
        self._item = item

    def open(self, out: Out) -> None:
        out += begun(self._item, self._place)

    def take(self, text: str, out: Out) -> None:
        raise EngineFailed(GONE_ON)

    def settle(self, out: Out) -> None:
        """Its arguments are whole, if they were not."""

    def stage(self, word: str, out: Out) -> None:
        """A word that this kind of item has no event for says nothing."""
        step = KINDS[type(self._item)].stages.get(word)
        if step is not None:
            item_id, index = self._place
            out.append(step(item_id=item_id, output_index=index))

    def close(self, item: ServerItem, out: Out) -> None:
        if type(item) is not type(self._item):
            raise EngineFailed(f"What began as {_name(self._item)} ended as {_name(item)}.")
        out += ended(item, self._place)

    def cut(self, out: Out) -> None:
        """The response ends before it does."""
        out += ended(cut_short(self._item), self._place)


class OpenMcpCall(OpenServerItem):
    """Its arguments are told piece by piece. What was told of it is not changed by what comes of it."""

    def __init__(self, item_id: str, index: int, started: CallStarted) -> None:
        label, name = started.namespace or "", started.name
        call = McpCall(server_label=label, name=name, arguments="", approval_request_id=started.approval)
        super().__init__(item_id, index, call)
        self._told = {"server_label": label, "name": name, "approval_request_id": started.approval}
        self._pieces: list[str] = []
        self._whole = False

    def open(self, out: Out) -> None:
        out += item_added(self._item, self._place)

    def take(self, text: str, out: Out) -> None:
        if self._whole:
            super().take(text, out)
        self._pieces.append(text)
        item_id, index = self._place
        out.append(ev.McpCallArgumentsDelta(item_id=item_id, output_index=index, delta=text))

    def settle(self, out: Out) -> None:
        self._tell_whole(out)
        self._whole = True

    def close(self, item: ServerItem, out: Out) -> None:
        if isinstance(item, McpCall):
            item = replace(item, **self._told, arguments=self._tell_whole(out))
        super().close(item, out)

    def cut(self, out: Out) -> None:
        out += ended(cut_short(replace(self._item, arguments=self._tell_whole(out))), self._place)

    def _tell_whole(self, out: Out) -> str:
        arguments = "".join(self._pieces)
        if not self._whole:
            item_id, index = self._place
            out.append(ev.McpCallArgumentsDone(item_id=item_id, output_index=index, arguments=arguments))
        return arguments


def _name(item: ServerItem) -> str:
    return str(item.__struct_config__.tag)
