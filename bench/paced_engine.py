"""A server whose engine computes nothing: every stream gets a token at each tick. What remains is the cost of HTTP.

    python paced_engine.py MODEL TOKENS_PER_S

serves on a free port of the loopback with MODEL's tokenizer. All streams together get TOKENS_PER_S.
"""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING

from caudal.checkpoint import open_checkpoint
from caudal.config import EngineConfig
from caudal.messages import EngineReady, EngineStats, Update
from caudal.server.launch import EngineSource, listen, run_server
from caudal.server.model_catalog import ModelCatalog
from caudal.server.residency import Residency
from caudal.server.settings import ServedModel, ServerSettings
from caudal.tokenizer.from_gguf import load_gguf_tokenizer

if TYPE_CHECKING:
    from caudal.messages import AddRequest

VOCABULARY = (1000, 9000)  # ids that are words in any vocabulary


class PacedEngine:
    """Takes requests as an engine does, and answers with random words, at a pace."""

    def __init__(self, tokens_per_s: float) -> None:
        self._tokens_per_s = tokens_per_s
        self._left: dict[str, int] = {}
        self._source = random.Random(1)  # noqa: S311 - any words will do
        self._next_s = 0.0
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether a stream is open."""
        return bool(self._left)

    def add_request(self, request: AddRequest) -> None:
        """Open a stream."""
        self._left[request.request_id] = request.params.max_tokens or 1000

    def abort(self, request_id: str) -> Update | None:
        """Close a stream."""
        known = self._left.pop(request_id, None) is not None
        return Update(request_id=request_id, finish_reason="abort") if known else None

    def step(self) -> list[Update]:
        """Wait for the tick and give every stream a token."""
        now_s = time.monotonic()
        self._next_s = max(self._next_s + len(self._left) / self._tokens_per_s, now_s)
        time.sleep(self._next_s - now_s)
        self._num_steps += 1
        updates = []
        for request_id, left in list(self._left.items()):
            self._left[request_id] = left - 1
            reason = "length" if left == 1 else None
            if reason:
                del self._left[request_id]
            token_id = self._source.randrange(*VOCABULARY)
            updates.append(Update(request_id=request_id, token_ids=[token_id], finish_reason=reason))
        return updates

    def fail_all(self, error: str) -> list[Update]:
        """Close every stream."""
        updates = [Update(request_id=name, finish_reason="error", error=error) for name in self._left]
        self._left.clear()
        return updates

    def stats(self) -> EngineStats:
        """Return what a busy engine says."""
        return EngineStats(num_steps=self._num_steps, num_running=len(self._left), busy=self.has_work)

    def ready_info(self) -> EngineReady:
        """Return facts about no model."""
        return EngineReady(max_model_len=8192)


def load(config: EngineConfig) -> PacedEngine:
    """Make the engine; the name of its model is its pace."""
    return PacedEngine(float(config.model_path))


def main() -> None:
    """Serve."""
    model, tokens_per_s = sys.argv[1:]
    settings = ServerSettings(port=0)
    with open_checkpoint(model) as checkpoint:
        tokenizer = load_gguf_tokenizer(checkpoint.metadata, path=model)
    catalog = ModelCatalog(lambda: [ServedModel(name="paced", path=tokens_per_s)])
    catalog.look_now()
    engines = EngineSource(
        config=EngineConfig(model_path=tokens_per_s),
        factory="paced_engine:load",
        load_tokenizer=lambda _path: tokenizer,
    )
    with listen(settings) as listener:
        run_server(listener, settings, catalog, engines, Residency(), "paced")


if __name__ == "__main__":
    main()
