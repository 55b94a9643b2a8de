"""The control tokens of gpt-oss, which speaks Harmony: messages with a header, a channel and perhaps a recipient.

    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>

They are the same in every model of the family. What is no control token is text: core/harmony.py knows its words.
"""

from typing import Final, Literal

RETURN: Final = 200002  # the end of the answer
CONSTRAIN: Final = 200003
CHANNEL: Final = 200005
START: Final = 200006
END: Final = 200007  # of a message; more may follow
MESSAGE: Final = 200008  # the end of its header
CALL: Final = 200012  # the end of a message to a tool
END_OF_TEXT: Final = 199999

FIRST_CONTROL: Final = 199998  # every token from here on is a control token, whether it has a use or not

ENDS: Final = frozenset({END, RETURN, CALL, END_OF_TEXT})
STOPS: Final = (RETURN, CALL)  # where a model must be stopped, whatever else stops it

NAMES: Final = {
    RETURN: "<|return|>",
    CONSTRAIN: "<|constrain|>",
    CHANNEL: "<|channel|>",
    START: "<|start|>",
    END: "<|end|>",
    MESSAGE: "<|message|>",
    CALL: "<|call|>",
}

Channel = Literal["analysis", "commentary", "final"]
CHANNELS: Final[tuple[Channel, ...]] = ("analysis", "commentary", "final")
FUNCTIONS: Final = "functions"  # the namespace of what a client declares
