"""Where the reading of literals is; what leads from one to the other is drawn in literals.py."""

from enum import IntEnum


class State(IntEnum):
    ARGUMENT = 0
    NAMED = 1
    KEY = 2
    COLON = 3
    VALUE = 4
    NEXT = 5
    GLUE = 6
    STRING = 7
    WORD = 8
    DONE = 9
    BROKEN = 10


ARGUMENT, NAMED, KEY, COLON, VALUE, NEXT, GLUE, STRING, WORD, DONE, BROKEN = State  # looked up on the token path
