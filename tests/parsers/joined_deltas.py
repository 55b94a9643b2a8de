"""What a parser said, with neighbouring pieces of one kind joined: the part that cuts must not change."""

from collections.abc import Iterable

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, Refusal, Text, Thought
from antiphon.core.prompt import Chunk, Prompt, Segment, TextPrompt
from antiphon.parsers.base import Parser

NO_PROMPT = TextPrompt(())


def opened(mark: str) -> Prompt:
    """A prompt whose template has put the model into a thought."""
    return TextPrompt((Segment("hello", False), Segment(f"<|assistant|>{mark}\n", True)))


def everything(parser: Parser, chunks: Iterable[Chunk]) -> list[Delta]:
    return [*[delta for chunk in chunks for delta in parser.feed(chunk)], *parser.finish()]


def joined(deltas: Iterable[Delta]) -> list[tuple[str, str]]:
    """Kind and text; logprobs are told by their tokens."""
    told: list[tuple[str, str]] = []
    for kind, text in (pair for delta in deltas for pair in _told(delta)):
        if told and told[-1][0] == kind and kind not in ("call", "done", "break"):
            told[-1] = kind, told[-1][1] + text
        else:
            told.append((kind, text))
    return told


def _told(delta: Delta) -> list[tuple[str, str]]:
    match delta:
        case Text(text=text):
            return [("text", text)]
        case Thought(text=text):
            return [("thought", text)]
        case Refusal(text=text):
            return [("refusal", text)]
        case Break(phase=phase):
            return [("break", phase or "")]
        case CallStarted(key=key, name=name):
            return [("call", f"{key} {name}")]
        case CallDelta(key=key, text=text):
            return [(f"arguments {key}", text)]
        case CallDone(key=key):
            return [("done", str(key))]
    raise AssertionError(f"no parser says {delta}")


def tokens(deltas: Iterable[Delta]) -> list[str]:
    return [logprob.token for delta in deltas if isinstance(delta, Text) for logprob in delta.logprobs]
