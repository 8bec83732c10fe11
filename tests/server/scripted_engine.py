"""An engine without a model: the prompt says what the answer is. Runs in a thread or in an engine process.

A prompt that has `say:TEXT` is answered with TEXT and the end token, `loop:TEXT` with TEXT for ever; `slow-` before
either makes each step take 20 ms. `crash` makes a step raise, `die` ends the process, `hang` blocks a step, and
`explode` makes taking the request raise.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from caudal.errors import CheckpointError, InvalidParameter, Overloaded
from caudal.messages import STEP_TOKENS, EngineReady, EngineStats, StartTimes, TokenLogprobs, Update

ORDER = re.compile(r"(slow-)?(say|loop):(.*?)(?:\n<|$)", re.DOTALL)


class _Script:
    def __init__(self, request, cached):
        self.request = request
        self.cached = cached
        text = bytes(i for i in request.prompt_token_ids if i < 256).decode(errors="replace")
        orders = ORDER.findall(text) or [("", "say", "hello")]
        slow, self.kind, self.answer = orders[-1]
        self.slow = bool(slow)
        self.text = text
        self.num_tokens = 0

    def next_token(self):
        data = self.answer.encode()
        if self.kind == "loop":
            return data[self.num_tokens % len(data)]
        params = self.request.params
        if self.num_tokens < len(data):
            return data[self.num_tokens]
        if params.ignore_eos or self.num_tokens < params.min_tokens:
            return ord(".")
        return self.request.eos_token_ids[0]


class ScriptedEngine:
    def __init__(self, config):
        self.config = config
        self.max_model_len = config.max_model_len or 512
        self.waiting = []
        self.running = []
        self.num_steps = self.num_prompt = self.num_generated = self.num_hits = 0
        self.seen = []
        self.vocabulary = None
        self.grammars = []

    @property
    def has_work(self):
        return bool(self.waiting or self.running)

    def add_request(self, request):
        if len(self.waiting) >= self.config.max_queue_len:
            message = "the queue is full"
            raise Overloaded(message)
        cached = max((_common(old, request.prompt_token_ids) for old in self.seen), default=0) // 16 * 16
        self.seen = [*self.seen[-15:], request.prompt_token_ids]
        self.grammars.append(request.grammar)
        if request.grammar and self.vocabulary is None:
            message = "a grammar came before the vocabulary"
            raise InvalidParameter(message)
        self.num_prompt += len(request.prompt_token_ids)
        self.num_hits += cached
        script = _Script(request, cached)
        if "explode" in script.text:
            raise ZeroDivisionError
        self.waiting.append(script)
        self._start()

    def _start(self):
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            self.running.append(self.waiting.pop(0))

    def know_vocabulary(self, vocabulary):
        self.vocabulary = vocabulary

    def abort(self, request_id):
        for scripts in (self.waiting, self.running):
            for script in scripts:
                if script.request.request_id == request_id:
                    scripts.remove(script)
                    return Update(request_id=request_id, finish_reason="abort")
        return None

    def step(self):
        self.num_steps += 1
        self._start()
        for word in ("crash", "die", "hang"):
            if any(word in script.text for script in self.running):
                {"crash": lambda: 1 // 0, "die": lambda: os._exit(9), "hang": lambda: time.sleep(1)}[word]()
        if any(script.slow for script in self.running):
            time.sleep(0.02)
        return [self._advance(script) for script in list(self.running)]

    def _advance(self, script):
        request, params = script.request, script.request.params
        token_id = script.next_token()
        first = script.num_tokens == 0
        script.num_tokens += 1
        self.num_generated += 1
        total = len(request.prompt_token_ids) + script.num_tokens
        reason = None
        if token_id in (*request.eos_token_ids, *params.stop_token_ids) and script.num_tokens > params.min_tokens:
            reason = "stop"
        elif script.num_tokens >= (params.max_tokens or 10**9) or total >= self.max_model_len:
            reason = "length"
        if reason:
            self.running.remove(script)
        prompt_logprobs = None
        if first and params.prompt_logprobs is not None:
            ids = request.prompt_token_ids
            prompt_logprobs = [None, *(_logprobs(i, params.prompt_logprobs) for i in ids[1:])]
        return Update(
            request_id=request.request_id,
            token_ids=[token_id],
            logprobs=None if params.logprobs is None else [_logprobs(token_id, params.logprobs)],
            prompt_logprobs=prompt_logprobs,
            finish_reason=reason,
            stop_token_id=token_id if reason == "stop" else None,
            num_cached_tokens=script.cached,
            start_times=StartTimes(0.25, 0.5) if first else None,
        )

    def fail_all(self, error):
        failed = [*self.running, *self.waiting]
        self.running, self.waiting = [], []
        return [Update(request_id=s.request.request_id, finish_reason="error", error=error) for s in failed]

    def stats(self):
        return EngineStats(
            num_steps=self.num_steps,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_blocks_total=100,
            kv_blocks_used=len(self.running),
            kv_slots_allocated=32 * len(self.running),
            kv_slots_used=31 * len(self.running),
            prompt_tokens=self.num_prompt,
            generation_tokens=self.num_generated,
            prefix_cache_queries=self.num_prompt,
            prefix_cache_hits=self.num_hits,
            step_tokens=[self.num_steps, *[0] * len(STEP_TOKENS), self.num_generated],
            num_drafts=2,
            num_draft_tokens=9,
            num_accepted_tokens=5,
            busy=self.has_work,
        )

    def ready_info(self):
        return EngineReady(
            max_model_len=self.max_model_len,
            max_num_seqs=self.config.max_num_seqs,
            num_kv_blocks=100,
            kv_dtype="f16",
        )


def _common(a, b):
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _logprobs(token_id, num_top):
    top = [token_id, *((token_id + k) % 256 for k in range(1, num_top))][:num_top]
    return TokenLogprobs(token_id, -0.5, 1, top, [-0.5 - k for k in range(num_top)])


def _wait_at_the_gate(folder, name):
    """Say that the load has begun, and wait until the test lets it go on (NAME.open) or fail (NAME.broken)."""
    (folder / f"{name}.{os.getpid()}.begun").touch()
    while not (folder / f"{name}.open").exists():
        if (folder / f"{name}.broken").exists():
            message = "the file ends too early"
            raise CheckpointError(message, path=name)
        time.sleep(0.01)


def load(config):
    if config.model_path == "broken":
        message = "magic is b'GGML'; expected b'GGUF'"
        raise CheckpointError(message, path=config.model_path)
    if config.model_path == "silent":
        os._exit(3)
    if config.model_path == "slow":
        time.sleep(60)
    if config.model_path.startswith("gated"):
        _wait_at_the_gate(Path(os.environ["SCRIPTED_GATES"]), config.model_path)
    return ScriptedEngine(config)
