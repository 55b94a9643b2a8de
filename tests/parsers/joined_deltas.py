"""Deltas of a parser with neighbours of one kind joined, which must not depend on chunk boundaries."""

from collections.abc import Iterable

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Text
from antiphon.core.prompt import Chunk, Prompt, Segment, TextPrompt
from antiphon.parsers.base import Parser

NO_PROMPT = TextPrompt(())


def make_open_prompt(marker: str) -> Prompt:
    """Return a prompt whose template has opened reasoning with `marker`."""
    return TextPrompt((Segment("hello", False), Segment(f"<|assistant|>{marker}\n", True)))


def run_parser(parser: Parser, chunks: Iterable[Chunk]) -> list[Delta]:
    return [*[delta for chunk in chunks for delta in parser.feed(chunk)], *parser.finish()]


def join_deltas(deltas: Iterable[Delta]) -> list[tuple[str, str]]:
    """Return pairs of kind and text; `get_logprob_tokens` returns the log probabilities."""
    pairs: list[tuple[str, str]] = []
    for kind, text in (pair for delta in deltas for pair in _to_pairs(delta)):
        if pairs and pairs[-1][0] == kind and kind not in ("call", "done", "break"):
            pairs[-1] = kind, pairs[-1][1] + text
        else:
            pairs.append((kind, text))
    return pairs


def _to_pairs(delta: Delta) -> list[tuple[str, str]]:
    match delta:
        case Text(text=text):
            return [("text", text)]
        case ReasoningDelta(text=text):
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
    raise AssertionError(f"no parser emits {delta}")


def get_logprob_tokens(deltas: Iterable[Delta]) -> list[str]:
    return [logprob.token for delta in deltas if isinstance(delta, Text) for logprob in delta.logprobs]
