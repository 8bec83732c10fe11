"""LLM: a model in this process, for scripts, the command line and benchmarks."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from caudal.checkpoint import open_checkpoint
from caudal.config import EngineConfig
from caudal.constrain.output_rule import grammar_of
from caudal.engine.engine import Engine
from caudal.engine.load import load_engine_from
from caudal.engine.request_table import error_from_kind
from caudal.errors import CaudalError, EngineDead, EngineUnavailable, InvalidParameter, Overloaded
from caudal.hub.resolve import resolve
from caudal.messages import AddRequest, Vocabulary
from caudal.sampling_params import SamplingParams
from caudal.tokenizer.load import load_tokenizer
from caudal.tokenizer.stop_strings import StopMatcher
from caudal.vectors import normalized

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from caudal.constrain.output_rule import OutputRule
    from caudal.engine.pooling_engine import PoolingEngine
    from caudal.messages import TokenLogprobs, Update
    from caudal.tokenizer.tokenizer import Tokenizer

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer.

    Attributes:
        text: may be empty while characters or stop strings are incomplete.
        finish_reason: on the last piece only: "stop", "length" or "abort".
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: list[int]
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class _Answer:
    """Turns one request's updates into chunks of text, and knows when a stop string ended it."""

    def __init__(self, tokenizer: Tokenizer, request: AddRequest) -> None:
        self.request = request
        self.finished = False
        params = request.params
        self._detokenizer = tokenizer.detokenizer(
            request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._stops = StopMatcher(params.stop)
        self._num_tokens = 0

    def take(self, update: Update) -> Chunk:
        """Return the piece that an update brings. The text does not depend on how many tokens an update has."""
        text, matched, num_read = "", None, 0
        for token_id in update.token_ids:
            num_read += 1
            self._num_tokens += 1
            if token_id != update.stop_token_id:
                shown, matched = self._show(self._detokenizer.push([token_id]))
                text += shown
            if matched is not None:
                break
        if update.finish_reason is not None and matched is None:
            shown, matched = self._show(self._detokenizer.flush())
            text += shown if matched is not None else shown + self._stops.flush()
        reason = update.finish_reason if matched is None else "stop"
        self.finished = reason is not None
        return Chunk(
            text=text,
            token_ids=update.token_ids[:num_read],
            finish_reason=reason,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=update.num_cached_tokens,
            logprobs=None if update.logprobs is None else update.logprobs[:num_read],
            prompt_logprobs=update.prompt_logprobs,
        )

    def _show(self, text: str) -> tuple[str, str | None]:
        """Return what may be shown of new text, and the stop string that ends it, if one does."""
        if self._num_tokens <= self.request.params.min_tokens:
            return text, None
        return self._stops.push(text)


class _OpenRequest:
    """A request in the engine, and the pieces of its answer that nobody has read yet."""

    def __init__(self, answer: _Answer) -> None:
        self.answer = answer
        self.chunks: deque[Chunk] = deque()
        self.error: CaudalError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no further piece will come."""
        return self.answer.finished or self.error is not None

    def take(self, update: Update) -> None:
        """Keep what an update brings."""
        if self.has_ended:
            return
        if update.error_kind is not None:
            self.error = error_from_kind(update.error_kind, update.error or "", update.error_parameter)
        elif update.error is not None:
            self.error = EngineDead(update.error)
        else:
            self.chunks.append(self.answer.take(update))

    def read(self) -> list[Chunk]:
        """Return the unread pieces.

        Raises:
            EngineDead: there are none, and the engine failed while it served the request.
            RequestError, Overloaded: the engine refused the request.
        """
        if not self.chunks and self.error is not None:
            raise self.error
        unread = list(self.chunks)
        self.chunks.clear()
        return unread


class LLM:
    """A model, its tokenizer and an engine in this process. Not for several threads at once.

    Several streams may be open: reading one computes steps that serve all of them.

    Args:
        model: a path, a demo model's name or a name in the Hugging Face cache.
        chat_template: jinja2 source that takes the place of the file's.
        options: fields of EngineConfig. `prefill_per_decode` is 0 here if not given: what waits is a whole batch, not
            the reader of each token.

    Raises:
        ModelNotFound: the name leads to no file.
        CheckpointError: the file cannot be used.
        ConfigError: an option makes no sense.
    """

    def __init__(self, model: str | Path, *, chat_template: str | None = None, **options: Any) -> None:
        path = model if isinstance(model, Path) else resolve(model)
        config = EngineConfig(model_path=str(path), **({"prefill_per_decode": 0} | options))
        with open_checkpoint(path) as checkpoint:
            self.tokenizer: Tokenizer = load_tokenizer(checkpoint, chat_template=chat_template)
            self.engine: Engine | PoolingEngine = load_engine_from(checkpoint, config)
        self._ids = itertools.count()
        self._open: dict[str, _OpenRequest] = {}
        self._is_closed = False
        self._knows_vocabulary = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every request; streams still open raise EngineDead. The memory goes with the object."""
        self._is_closed = True
        self._deliver(self.engine.fail_all("the LLM was closed before the answer was complete"))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, output: OutputRule | None = None
    ) -> Iterator[Chunk]:
        """Yield one answer piece by piece; closing the iterator aborts it. `params.n` must be 1.

        `output` says what the answer must look like.

        Raises:
            PromptTooLong, InvalidParameter: the request can never be served.
            Overloaded: too many requests are open.
            EngineUnavailable: the LLM is closed.
            EngineDead: the engine failed while it served the request.
        """
        request = self._request(prompt, params or SamplingParams(), self._grammar(output))
        chunks = self._chunks(request)
        next(chunks)  # adds the request, so that a refusal is raised here and closing the iterator always aborts
        return cast("Iterator[Chunk]", chunks)

    def _chunks(self, request: AddRequest) -> Iterator[Chunk | None]:
        opened = self._add(request)
        try:
            yield None
            while opened.chunks or not opened.answer.finished:
                yield from opened.read()
                if not opened.has_ended:
                    self._step()
        finally:
            self._forget(request.request_id)

    def _add(self, request: AddRequest) -> _OpenRequest:
        """Give a request to the engine."""
        if self._is_closed:
            message = "this LLM is closed; make a new one"
            raise EngineUnavailable(message)
        self._writer().add_request(request)
        opened = self._open[request.request_id] = _OpenRequest(_Answer(self.tokenizer, request))
        return opened

    def _writer(self) -> Engine:
        """Return the engine of a model that writes text."""
        if not isinstance(self.engine, Engine):
            message = "this model makes embeddings and writes no text; use embed()"
            raise InvalidParameter(message, parameter="model")
        return self.engine

    def _forget(self, request_id: str) -> None:
        """Drop a request, in the engine too unless it has ended there."""
        self._open.pop(request_id, None)
        self.engine.abort(request_id)

    def _step(self) -> None:
        """Compute a step and keep what it brings for whoever reads it."""
        self._deliver(self.engine.step())
        if not self.engine.has_work:
            for opened in self._open.values():
                if not opened.has_ended:  # a step that was interrupted took the request along
                    opened.error = EngineDead("the request was lost when a step was interrupted; ask again")

    def _deliver(self, updates: Sequence[Update]) -> None:
        for update in updates:
            opened = self._open.get(update.request_id)
            if opened is None:
                continue
            opened.take(update)
            if opened.answer.finished:
                self.engine.abort(update.request_id)  # a stop string ends an answer before the engine does

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        output: OutputRule | None = None,
        **template: Any,
    ) -> Iterator[Chunk]:
        """Yield the answer to a conversation piece by piece. Raises TemplateError as well."""
        return self.stream(self.tokenizer.encode_chat(messages, **template), params, output=output)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        output: OutputRule | None = None,
    ) -> list[Completion]:
        """Return the answers to all prompts, computed together, in order; `n` answers in a row for each prompt.

        Args:
            prompts: texts or lists of token ids.
            params: for all prompts, or one for each.
            output: what every answer must look like.
        """
        grammar = self._grammar(output)
        many = _as_list(prompts)
        each = [params] * len(many) if isinstance(params, SamplingParams) else list(params or ())
        each = each or [SamplingParams()] * len(many)
        requests = [
            self._request(prompt, _nth_answer(p, index), grammar)
            for prompt, p in zip(many, each, strict=True)
            for index in range(p.n)
        ]
        chunks: dict[str, list[Chunk]] = {request.request_id: [] for request in requests}
        waiting = deque(requests)
        unfinished: list[_OpenRequest] = []
        try:
            while waiting or unfinished:
                unfinished += self._add_some(waiting, can_wait=bool(unfinished))
                self._step()
                for opened in unfinished:
                    chunks[opened.answer.request.request_id] += opened.read()
                unfinished = [opened for opened in unfinished if not opened.answer.finished]
        finally:
            for request_id in chunks:
                self._forget(request_id)
        return [_joined(pieces) for pieces in chunks.values()]

    def _add_some(self, waiting: deque[AddRequest], *, can_wait: bool) -> list[_OpenRequest]:
        """Add as many requests as the queue takes; if that is none, others must be under way."""
        added: list[_OpenRequest] = []
        while waiting:
            try:
                added.append(self._add(waiting[0]))
            except Overloaded:
                if not added and not can_wait:
                    raise
                break
            waiting.popleft()
        return added

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        output: OutputRule | None = None,
        **template: Any,
    ) -> Completion:
        """Return the answer to a conversation."""
        return self.generate([self.tokenizer.encode_chat(messages, **template)], params, output=output)[0]

    def embed(self, texts: Prompt | Sequence[Prompt], *, normalize: bool = True) -> list[list[float]]:
        """Return a vector for each text; of a reranker's model its scores, which are not to be normalized.

        Args:
            texts: texts or lists of token ids.
            normalize: bring each vector to length 1.

        Raises:
            InvalidParameter: the model writes text; see EngineConfig.pooling.
            EngineDead: the engine failed while it served the request.
        """
        if self.engine.ready_info().task == "generate":
            message = "this model writes text; LLM(model, pooling='mean') makes embeddings with it all the same"
            raise InvalidParameter(message, parameter="pooling")
        requests = [self._request(text, SamplingParams(max_tokens=1)) for text in _as_list(texts)]
        waiting, vectors = deque(requests), dict[str, list[float]]()
        try:
            while len(vectors) < len(requests):
                self._fill_queue(waiting)
                for update in self.engine.step():
                    if update.embedding is None:
                        raise EngineDead(update.error or "the engine failed this text; see its log")
                    vectors[update.request_id] = update.embedding
        finally:
            for request in requests:
                self.engine.abort(request.request_id)
        found = [vectors[request.request_id] for request in requests]
        return [normalized(vector) for vector in found] if normalize else found

    def _fill_queue(self, waiting: deque[AddRequest]) -> None:
        while waiting:
            try:
                self.engine.add_request(waiting[0])
            except Overloaded:
                return
            waiting.popleft()

    def _grammar(self, output: OutputRule | None) -> str:
        """Return the grammar of a rule, and tell the engine its vocabulary before the first one."""
        if output is None:
            return ""
        if not self._knows_vocabulary:
            tokenizer = self.tokenizer
            self._writer().know_vocabulary(
                Vocabulary(
                    tokens=[tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)],
                    special_ids=sorted(tokenizer.special_ids),
                    eos_token_ids=list(tokenizer.eos_token_ids),
                )
            )
            self._knows_vocabulary = True
        return grammar_of(output)

    def _request(self, prompt: Prompt, params: SamplingParams, grammar: str = "") -> AddRequest:
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return AddRequest(
            request_id=f"local-{next(self._ids)}",
            prompt_token_ids=token_ids,
            params=params,
            eos_token_ids=self.tokenizer.eos_token_ids,
            grammar=grammar,
        )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, a text or token ids, becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and isinstance(items[0], int):
        return [items]  # type: ignore[list-item]  # a list of ints is one prompt
    return items  # type: ignore[return-value]


def _nth_answer(params: SamplingParams, index: int) -> SamplingParams:
    """Parameters of answer `index` of n: one answer, with a seed of its own."""
    seed = params.seed if params.seed is None or index == 0 else (params.seed + index) % 2**64
    return msgspec.structs.replace(params, n=1, seed=seed)


def _joined(chunks: list[Chunk]) -> Completion:
    last = chunks[-1]
    if last.finish_reason is None:
        message = "an answer has no end; this is a bug in the engine"
        raise CaudalError(message)
    logprobs = [entry for chunk in chunks for entry in chunk.logprobs or ()]
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token_id for chunk in chunks for token_id in chunk.token_ids],
        finish_reason=last.finish_reason,
        num_prompt_tokens=last.num_prompt_tokens,
        num_cached_tokens=last.num_cached_tokens,
        logprobs=logprobs or None,
        prompt_logprobs=next((chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs), None),
    )
