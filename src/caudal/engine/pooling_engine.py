"""The engine of models that read: a text in, a vector or scores out, all in one step.

Texts are read whole, many in a step. Nothing is kept from one step to the next, so the KV cache is scratch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from caudal.engine.pooling_queue import PoolingQueue, WaitingText
from caudal.engine.step_batch import StepBatch
from caudal.errors import ConfigError, InvalidParameter, Overloaded, PromptTooLong
from caudal.messages import EngineStats, Update

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from caudal.config import EngineConfig
    from caudal.engine.model_facts import ModelFacts
    from caudal.engine.runner import Runner
    from caudal.messages import AddRequest, EngineReady, Vocabulary
    from caudal.models.encoder_spec import Pooling

logger = logging.getLogger(__name__)


class PoolingEngine:
    """Reads texts. It has the methods of Engine; an update carries `embedding` instead of tokens.

    A request may fail; the engine does not: an exception in a step ends the requests of that step with an error.

    Args:
        config: `max_num_batched_tokens` holds a whole text.
        runner: its model gives a vector or scores for every text.
        facts: about the model.
        max_model_len: tokens of the longest text.
        pooling: which row stands for a text.
        scores: the model gives scores.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        facts: ModelFacts,
        max_model_len: int,
        *,
        pooling: Pooling,
        scores: bool,
    ) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self._runner = runner
        self._facts = facts
        self._pooling = pooling
        self._scores = scores
        self._queue = PoolingQueue(config.max_num_seqs, config.max_num_batched_tokens)
        whole = config.max_num_seqs * -(-max_model_len // config.block_size)
        needed = min(whole, config.max_num_batched_tokens // config.block_size + config.max_num_seqs)
        if min(group.num_blocks for group in runner.groups) < needed:
            message = (
                f"the KV cache is too small: a step of {config.max_num_batched_tokens} tokens needs {needed} blocks"
            )
            raise ConfigError(message)
        self._token_ids: dict[str, list[int]] = {}
        self._num_steps = 0
        self._num_prompt_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a text waits."""
        return bool(self._token_ids)

    def add_request(self, request: AddRequest) -> None:
        """Take a text in.

        Raises:
            PromptTooLong, InvalidParameter: it can never be read.
            Overloaded: the queue is full.
        """
        ids, size = request.prompt_token_ids, self._facts.vocab_size
        if not ids:
            message = "the text has no tokens; expected at least one"
            raise InvalidParameter(message, parameter="input")
        if len(ids) > self.max_model_len:
            message = (
                f"This model's maximum context length is {self.max_model_len} tokens. However, the text has {len(ids)} "
                "tokens."
            )
            raise PromptTooLong(message, parameter="input")
        wrong = next((token_id for token_id in ids if not 0 <= token_id < size), None)
        if wrong is not None:
            message = f"input has token id {wrong}; expected ids from 0 to {size - 1}"
            raise InvalidParameter(message, parameter="input")
        if len(self._queue) >= self.config.max_queue_len:
            message = (
                f"{len(self._queue)} texts wait and the limit is {self.config.max_queue_len}; try again in a moment"
            )
            raise Overloaded(message)
        self._token_ids[request.request_id] = ids
        self._queue.add(WaitingText(request.request_id, request.tenant, len(ids)))
        self._num_prompt_tokens += len(ids)

    def know_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Do nothing: what is read has no form to keep to."""

    def abort(self, request_id: str) -> Update | None:
        """Forget a text and return its last update; None if it is unknown."""
        if self._token_ids.pop(request_id, None) is None:
            return None
        self._queue.remove(request_id)
        return Update(request_id=request_id, finish_reason="abort")

    def step(self) -> list[Update]:
        """Read as many texts as one step holds."""
        texts = self._queue.take()
        if not texts:
            return []
        tokens = [self._token_ids.pop(text.request_id) for text in texts]
        try:
            results = self._read(tokens)
        except Exception:
            logger.exception("a step failed; its %d texts are read one by one", len(texts))
            return [self._read_alone(text, ids) for text, ids in zip(texts, tokens, strict=True)]
        self._num_steps += 1
        return [self._update(text, result) for text, result in zip(texts, results, strict=True)]

    def _read_alone(self, text: WaitingText, ids: Sequence[int]) -> Update:
        """Read one text of a step that failed: alone it gives the same bits, or fails alone."""
        try:
            (result,) = self._read([ids])
        except Exception as error:
            logger.exception("a text of a step failed alone")
            message = f"the engine failed while it computed this request ({type(error).__name__})"
            return Update(request_id=text.request_id, finish_reason="error", error=message)
        self._num_steps += 1
        return self._update(text, result)

    def _update(self, text: WaitingText, result: NDArray[np.float32]) -> Update:
        if not np.isfinite(result).all():
            message = "the model's output for this text is not finite"
            return Update(request_id=text.request_id, finish_reason="error", error=message)
        return Update(request_id=text.request_id, embedding=result.tolist(), finish_reason="stop")

    def _read(self, tokens: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Return a vector or the scores of every text."""
        batch = whole_texts(tokens, self._pooling, self.config.block_size, len(self._runner.groups))
        return [row.copy() for row in self._runner.forward(batch)]

    def fail_all(self, error: str) -> list[Update]:
        """Forget every text and return their last updates."""
        updates = [Update(request_id=name, finish_reason="error", error=error) for name in self._token_ids]
        for name in tuple(self._token_ids):
            self.abort(name)
        return updates

    def stats(self) -> EngineStats:
        """Return counters since start and gauges now."""
        return EngineStats(
            num_steps=self._num_steps,
            num_waiting=len(self._queue),
            kv_blocks_total=sum(group.num_blocks for group in self._runner.groups),
            prompt_tokens=self._num_prompt_tokens,
            busy=self.has_work,
        )

    def ready_info(self) -> EngineReady:
        """Return what the API process wants to know about the loaded model."""
        task = "score" if self._scores else "embed"
        return self._facts.ready(self.config, self._runner, self.max_model_len, task)


def whole_texts(tokens: Sequence[Sequence[int]], pooling: Pooling, block_size: int, num_groups: int) -> StepBatch:
    """Return a step of whole texts, each in KV blocks of its own, and the row of each that its pooling wants.

    A mean is made of all rows; it has the last one's place.
    """
    lens = np.array([len(ids) for ids in tokens], np.int32)
    starts = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    num_blocks = -(-lens // block_size)
    first_blocks = np.concatenate([[0], np.cumsum(num_blocks)])[:-1]
    table = first_blocks[:, None] + np.arange(num_blocks.max())
    table = np.where(np.arange(num_blocks.max()) < num_blocks[:, None], table, -1).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in lens]).astype(np.int32)
    slots = (np.repeat(first_blocks * block_size, lens) + positions).astype(np.int32)
    rows = starts[:-1] if pooling == "cls" else starts[1:] - 1
    return StepBatch(
        token_ids=np.concatenate([np.array(ids, np.int32) for ids in tokens]),
        positions=positions,
        query_starts=starts,
        context_lens=lens,
        block_tables=(table,) * num_groups,
        slot_mapping=(slots,) * num_groups,
        logit_rows=np.ascontiguousarray(rows, np.int32),
        adapter_ids=np.zeros(len(lens), np.int32),
        block_size=block_size,
    )
