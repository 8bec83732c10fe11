"""Every message between the API process and an engine process, and how it is encoded (msgpack, tagged unions)."""

from __future__ import annotations

import msgspec

from caudal.sampling_params import SamplingParams  # noqa: TC001 - msgspec reads the annotation

FINISH_REASONS = ("stop", "length", "abort", "error")
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class AddRequest(msgspec.Struct, frozen=True, tag="add", kw_only=True):
    """Ask for one continuation. `params.n` is 1 here: the client sends one request per answer.

    Attributes:
        tenant: whose request it is; the scheduler is fair between tenants.
        cache_salt: separates prefix caches.
        grammar: what the answer must look like, as llguidance writes grammars; "" for anything.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    grammar: str = ""


class AbortRequest(msgspec.Struct, frozen=True, tag="abort", kw_only=True):
    """Forget a request. Its last update carries finish_reason "abort"; unknown ids are ignored."""

    request_id: str


class Vocabulary(msgspec.Struct, frozen=True, tag="vocabulary", kw_only=True):
    """What tokens stand for, which an engine needs for grammars and cannot know. Sent before the first of them.

    Attributes:
        tokens: the bytes of every token id.
        special_ids: control tokens, which no text consists of.
        eos_token_ids: tokens that end an answer.
    """

    tokens: list[bytes]
    special_ids: list[int]
    eos_token_ids: list[int]


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown", kw_only=True):
    """Leave: at once, or after the running requests have finished."""

    drain: bool = False


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: of the token itself, then of the likeliest ones, likeliest first."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class StartTimes(msgspec.Struct, frozen=True, array_like=True):
    """How long a request waited until it was first scheduled, and from then until it had its first token."""

    queue_s: float
    prefill_s: float


class Update(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """News of one request. Exactly one update of a request has a finish_reason, and it is the last.

    Attributes:
        token_ids: new tokens since the last update; a stop token that ended the answer is included.
        stop_token_id: the token that ended the answer, when one did (so its text can be left out).
        error: a sentence for the user when finish_reason is "error".
        error_kind: the class name in caudal.errors when the engine refused the request; None when it failed.
        error_parameter: the parameter that a refusal is about.
        prompt_logprobs: once, before or with the first token; None for the first prompt token.
        embedding: of a text that an embedding model has read, or its scores.
        start_times: once, with the first token.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    start_times: StartTimes | None = None
    error: str | None = None
    error_kind: str | None = None
    error_parameter: str | None = None
    embedding: list[float] | None = None


class Updates(msgspec.Struct, frozen=True, tag="updates", kw_only=True):
    """What one step had to say."""

    updates: list[Update]


class EngineStats(msgspec.Struct, frozen=True, tag="stats", kw_only=True):
    """Counters since start, and gauges now. Sent at most every 0.2 s while working, every second when idle.

    Attributes:
        step_tokens: steps by how many tokens they computed: up to each of STEP_TOKENS, and more; then their sum.
    """

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_slots_allocated: int = 0
    kv_slots_used: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    step_tokens: list[int] = []
    busy: bool = False


class EngineReady(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The model is loaded and the engine takes requests. The defaults are those of an engine without a model.

    Attributes:
        task: what it does with a request: "generate" text, "embed" one, or "score" a pair of them.
        weights_bytes: of all matrices.
        step_weights_bytes: of those that every step reads whole.
        macs_per_token, macs_per_logits: products with weights, of a token in all layers and in the head.
        max_num_seqs: most sequences in a step.
    """

    max_model_len: int
    task: str = "generate"
    num_kv_blocks: int = 1
    max_num_seqs: int = 1
    weights_bytes: int = 0
    step_weights_bytes: int = 0
    macs_per_token: int = 0
    macs_per_logits: int = 0
    kv_bytes_per_token: int = 0
    kv_dtype: str = "none"
    num_threads: int = 1
    isa: str = "none"
    load_s: float = 0.0


class EngineFailed(msgspec.Struct, frozen=True, tag="failed", kw_only=True):
    """The engine could not start; `error` is a sentence, `kind` the exception's class name."""

    kind: str
    error: str


ToEngine = AddRequest | AbortRequest | Vocabulary | Shutdown
FromEngine = Updates | EngineStats | EngineReady | EngineFailed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
