"""What one HTTP request may use and did use: tokens are reserved before any work, and settled when it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from caudal.server.keys.limiter import Refusal, TokenGrant
from caudal.server.keys.quota_problem import quota_problem
from caudal.server.keys.text_batch import TextBatch, TextMeter
from caudal.server.keys.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from caudal.sampling_params import SamplingParams
    from caudal.server.answer_reader import Piece
    from caudal.server.keys.key import Key
    from caudal.server.keys.limiter import Limiter
    from caudal.server.loaded_model import LoadedModel


class Metered(Protocol):
    """What a request's sums are made of."""

    num_prompt: int
    num_cached: int
    num_generated: int
    finish_reason: str | None


@dataclass(slots=True)
class AnswerMeter:
    """Counts one answer (see AnswerWatcher).

    Attributes:
        num_prompt: tokens of its prompt that count for it; 0 if they count for another answer to the same prompt.
        grant: what was reserved; None for nobody's.
        keeps_text: collect the answer's text.
    """

    num_prompt: int
    grant: TokenGrant | None
    keeps_text: bool
    num_cached: int = 0
    num_generated: int = 0
    finish_reason: str | None = None
    text: list[str] = field(default_factory=list)

    def note(self, piece: Piece) -> None:
        """Count a piece."""
        self.num_generated += piece.num_tokens
        self.num_cached = max(self.num_cached, piece.num_cached_tokens)
        if self.keeps_text:
            self.text.append(piece.text)
        if piece.finish_reason is not None:
            self.end(piece.finish_reason)

    def end(self, reason: str) -> None:
        """Settle, once. An answer that failed before it began costs nothing; an aborted one costs its prompt."""
        if self.finish_reason is not None:
            return
        self.finish_reason = reason
        if reason == "error" and self.num_generated == 0:
            self.num_prompt = 0
        self._settle()

    def close(self) -> None:
        """Settle an answer that was never begun."""
        if self.finish_reason is None:
            self.num_prompt = 0
            self._settle()

    def _settle(self) -> None:
        if self.grant is not None:
            self.grant.settle(self.num_prompt + self.num_generated)


class RequestMeter:
    """One request.

    Args:
        key: whose it is.
        limiter: of its key; None for nobody's.
        keeps_text: for a full audit log.
    """

    def __init__(self, key: Key, limiter: Limiter | None, *, keeps_text: bool) -> None:
        self.key = key
        self.model = ""
        self.prompts: list[Any] = []
        self._limiter = limiter
        self._keeps_text = keeps_text
        self._answers: list[AnswerMeter] = []
        self._batches: list[TextBatch] = []
        self._counted: list[list[int]] = []

    def begin_answer(
        self,
        prompt_token_ids: list[int],
        messages: Sequence[Mapping[str, Any]] | None,
        params: SamplingParams,
        model: LoadedModel,
    ) -> tuple[SamplingParams, AnswerMeter]:
        """Reserve an answer's tokens; return its parameters, perhaps with a smaller max_tokens, and its meter.

        Answers to one prompt share the list of its token ids, and the prompt counts once, as in `usage`.

        Raises:
            HTTPProblem: 429, the key has not enough tokens left; 400, it never has as many.
        """
        is_new = not any(prompt_token_ids is known for known in self._counted)
        num_prompt = len(prompt_token_ids) if is_new else 0
        if is_new:
            self._counted.append(prompt_token_ids)
            if self._keeps_text:
                shown = messages or model.tokenizer.decode(prompt_token_ids, skip_special_tokens=False)
                self.prompts.append(shown)
        grant = None
        if self._limiter is not None and params.max_tokens is not None:
            context = model.max_model_len
            got = self._limiter.reserve(
                self.key,
                num_prompt,
                params.max_tokens,
                least=max(1, params.min_tokens),
                is_open=context is not None and params.max_tokens >= context - len(prompt_token_ids),
            )
            if isinstance(got, Refusal):
                raise quota_problem(self.key, got)
            grant = got
            if grant.max_tokens != params.max_tokens:
                params = msgspec.structs.replace(params, max_tokens=grant.max_tokens)
        meter = AnswerMeter(num_prompt, grant, self._keeps_text)
        self._answers.append(meter)
        return params, meter

    def begin_reading(
        self, lengths: Sequence[int], shown: Callable[[], Sequence[Any]], parameter: str
    ) -> list[TextMeter]:
        """Reserve the tokens of texts that get no answer, as those of embeddings; return a meter for each.

        Args:
            lengths: their tokens.
            shown: returns what a full audit log has of them.
            parameter: the field that they come from.

        Raises:
            HTTPProblem: as begin_answer does; 400 if the texts together never fit.
        """
        if self._keeps_text:
            self.prompts.extend(shown())
        grant = None
        if self._limiter is not None:
            got = self._limiter.reserve(self.key, sum(lengths), 0, least=0, is_open=False)
            if isinstance(got, Refusal):
                raise quota_problem(self.key, got, parameter)
            grant = got
        batch = TextBatch([TextMeter(length) for length in lengths], grant)
        self._batches.append(batch)
        return batch.texts

    def close(self) -> None:
        """Settle whatever has not been."""
        for answer in self._answers:
            answer.close()
        for batch in self._batches:
            batch.close()

    def usage(self, status: int) -> Usage:
        """Return what the request used, given its status."""
        parts = self._parts
        failed = any(part.finish_reason == "error" for part in parts)
        return Usage(
            requests=1,
            prompt_tokens=sum(part.num_prompt for part in parts),
            cached_tokens=sum(min(part.num_cached, part.num_prompt) for part in parts),
            generated_tokens=sum(part.num_generated for part in parts),
            errors=int((status >= 400 and status not in (429, 499)) or (status < 400 and failed)),
            rate_limited=int(status == 429),
        )

    @property
    def finish_reasons(self) -> list[str]:
        """How its answers ended, or the texts that it had read."""
        return [part.finish_reason or "abort" for part in self._parts]

    @property
    def texts(self) -> list[str]:
        """The texts of its answers, if they are kept."""
        return ["".join(answer.text) for answer in self._answers]

    @property
    def _parts(self) -> list[Metered]:
        return [*self._answers, *(text for batch in self._batches for text in batch.texts)]
