"""Which tokens end an answer, and which only begin or end turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.tokenizer.token_types import CONTROL, UNKNOWN, USER_DEFINED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Texts that end an answer in the families that use them, whatever the file calls the token.
_STOP_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 (as the vocabulary spells it)
    "[e~[",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
)
# Texts that begin a turn: no message may hold them as tokens.
_TURN_TEXTS = frozenset(
    (
        "<|im_start|>",
        "<start_of_turn>",
        "<|turn>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|start|>",
        "<|message|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
    )
)
# These are also HTML or prose in some vocabularies: they end an answer only where the file marks them as control.
_STOP_TEXTS_IF_CONTROL = ("</s>", "<eos>")


def stop_ids_of(tokens: Sequence[str], types: Sequence[int], named: Iterable[int | None]) -> tuple[int, ...]:
    """Return every id that ends an answer, sorted: those that the file names and the texts known to end one.

    Two families use such a text inside an answer: where <|return|> and <|call|> exist (harmony), <|end|> only
    ends a message; where <|tool_response> or <|plamo:eos|> exist, </s> is prose.

    Args:
        tokens: text of every id.
        types: type of every id.
        named: by the file; None is none.
    """
    ids = {text: i for i, text in enumerate(tokens)}
    found = set(named)
    found.update(ids[t] for t in _STOP_TEXTS if t in ids and types[ids[t]] in (CONTROL, UNKNOWN, USER_DEFINED))
    found.update(ids[t] for t in _STOP_TEXTS_IF_CONTROL if t in ids and types[ids[t]] in (CONTROL, UNKNOWN))
    if "<|return|>" in ids and "<|call|>" in ids:
        found.discard(ids.get("<|end|>"))
    if "<|tool_response>" in ids or "<|plamo:eos|>" in ids:
        found.discard(ids.get("</s>"))
    return tuple(sorted(i for i in found if i is not None))


def with_control_turns(tokens: Sequence[str], types: Sequence[int], stop_ids: Iterable[int]) -> list[int]:
    """Return the types, with what ends or begins a turn as control tokens, also where the file says otherwise."""
    changed = list(types)
    turn_ids = (i for i, text in enumerate(tokens) if text in _TURN_TEXTS)
    for i in (*stop_ids, *turn_ids):
        if changed[i] == USER_DEFINED:
            changed[i] = CONTROL
    return changed
