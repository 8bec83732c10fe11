"""Drive llama.cpp through its C API, the rival's side of compare.py and quality.py.

It runs under a Python that has the `xllamacpp` wheel (or any shared library that exports llama.h) and needs nothing
else. The tests are those of llama-bench and llama-batched-bench: random tokens, no sampling, the prompt phase apart.

    python llama_cpp.py bench MODEL -p 512 -n 64 -b 8,32 -t 2 --flash-attn auto --json
    python llama_cpp.py logits MODEL TOKENS.i32 --window 512 > OUT.f32

Source: include/llama.h of llama.cpp. The parameter structs change often, so they are opaque bytes here: fields are
found by their documented defaults, written, and then read back through llama_n_ctx() and its like.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import random
import statistics
import sys
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARAMS_BYTES = 1024  # larger than either struct of parameters has ever been
DEFAULT_THREADS = 4  # GGML_DEFAULT_N_THREADS
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
BATCH_PROMPT = 32


class Params(ctypes.Structure):
    """llama_model_params or llama_context_params: passed in memory, so spare bytes at the end do no harm."""

    _fields_ = (("words", ctypes.c_int32 * (PARAMS_BYTES // 4)),)


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def load_library(path: str | None) -> ctypes.CDLL:
    """Open the shared library: the given one, or the one inside xllamacpp."""
    if path is None:
        spec = importlib.util.find_spec("xllamacpp")
        if spec is None or not spec.submodule_search_locations:
            sys.exit("llama_cpp.py: this Python has no xllamacpp; pip install xllamacpp or give --library")
        path = str(next(Path(spec.submodule_search_locations[0]).glob("xllamacpp*.so")))
        import xllamacpp  # noqa: F401, PLC0415 - loads what the library depends on
    lib = ctypes.CDLL(path)
    pointer, i32 = ctypes.c_void_p, ctypes.c_int32
    signatures: dict[str, tuple[object, list[object]]] = {
        "llama_model_default_params": (Params, []),
        "llama_context_default_params": (Params, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, Params]),
        "llama_init_from_model": (pointer, [pointer, Params]),
        "llama_free": (None, [pointer]),
        "llama_decode": (i32, [pointer, Batch]),
        "llama_synchronize": (None, [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [pointer, i32]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (i32, [pointer]),
        "llama_print_system_info": (ctypes.c_char_p, []),
        "llama_n_ctx": (ctypes.c_uint32, [pointer]),
        "llama_n_batch": (ctypes.c_uint32, [pointer]),
        "llama_n_ubatch": (ctypes.c_uint32, [pointer]),
        "llama_n_seq_max": (ctypes.c_uint32, [pointer]),
        "llama_n_threads": (i32, [pointer]),
        "llama_n_threads_batch": (i32, [pointer]),
        "llama_log_set": (None, [pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Model:
    """A loaded model; contexts are made from it."""

    def __init__(self, lib: ctypes.CDLL, path: str) -> None:
        self.lib = lib
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        lib.llama_log_set(ctypes.cast(self._quiet, ctypes.c_void_p), None)
        self.handle = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not self.handle:
            sys.exit(f"llama_cpp.py: llama.cpp could not load {path}")
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.handle))


class Context:
    """A context with room for `num_seqs` sequences of `seq_len` tokens."""

    def __init__(
        self, model: Model, *, seq_len: int, num_seqs: int, threads: int, flash_attention: str, kv_f32: bool = False
    ) -> None:
        """Make it; `kv_f32` keeps keys and values in float32 instead of float16."""
        self.lib, self.model = model.lib, model
        params = self.lib.llama_context_default_params()
        words = params.words
        ctx_len = -(-seq_len // 256) * 256 * num_seqs
        if list(words[:4]) != [512, 2048, 512, 1]:
            sys.exit("llama_cpp.py: llama_context_params does not begin with n_ctx, n_batch, n_ubatch, n_seq_max")
        words[0], words[3] = ctx_len, num_seqs
        found = [i for i in range(4, 12) if words[i] == words[i + 1] == DEFAULT_THREADS]
        runs = [i for i in range(4, 20) if list(words[i : i + 4]) == [-1] * 4]
        if len(found) != 1 or len(runs) != 1:
            sys.exit("llama_cpp.py: cannot find n_threads and flash_attn_type in llama_context_params")
        words[found[0]] = words[found[0] + 1] = threads
        words[runs[0] + 3] = FLASH_ATTENTION[flash_attention]
        if kv_f32:
            types = [i for i in range(20, 60) if list(words[i : i + 2]) == [1, 1]]  # type_k, type_v: GGML_TYPE_F16
            if len(types) != 1:
                sys.exit("llama_cpp.py: cannot find type_k and type_v in llama_context_params")
            words[types[0]] = words[types[0] + 1] = 0  # GGML_TYPE_F32
        self.handle = self.lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            sys.exit("llama_cpp.py: llama.cpp could not make a context")
        self._check(ctx_len, num_seqs, threads)
        self.memory = self.lib.llama_get_memory(self.handle)

    def _check(self, ctx_len: int, num_seqs: int, threads: int) -> None:
        """Stop unless the library took every parameter as it was meant."""
        lib, handle = self.lib, self.handle
        got = (
            lib.llama_n_batch(handle), lib.llama_n_ubatch(handle), lib.llama_n_seq_max(handle),
            lib.llama_n_threads(handle), lib.llama_n_threads_batch(handle),
        )  # fmt: skip
        if got != (2048, 512, num_seqs, threads, threads) and got[0] < min(ctx_len, 2048):
            sys.exit(f"llama_cpp.py: the parameters did not arrive: batch, ubatch, seqs, threads, threads = {got}")
        if got[2:] != (num_seqs, threads, threads) or lib.llama_n_ctx(handle) != ctx_len:
            sys.exit(f"llama_cpp.py: the parameters did not arrive: {got}, n_ctx {lib.llama_n_ctx(handle)}")

    def close(self) -> None:
        """Free the context."""
        self.lib.llama_free(self.handle)

    def clear(self) -> None:
        """Forget all sequences."""
        self.lib.llama_memory_clear(self.memory, False)  # noqa: FBT003 - a C function's flag

    def decode(self, tokens: Sequence[int], positions: Sequence[int], seq_ids: Sequence[int], *, logits: str) -> None:
        """Run one batch and wait for it. `logits` is "last", "each" or "all": the last of all, of each row, all."""
        n = len(tokens)
        ids = (ctypes.c_int32 * n)(*seq_ids)
        size = ctypes.sizeof(ctypes.c_int32)
        pointers = (ctypes.POINTER(ctypes.c_int32) * n)(
            *(ctypes.cast(ctypes.addressof(ids) + i * size, ctypes.POINTER(ctypes.c_int32)) for i in range(n))
        )
        last = [i == n - 1 or (logits == "each" and seq_ids[i] != seq_ids[i + 1]) or logits == "all" for i in range(n)]
        batch = Batch(
            n,
            (ctypes.c_int32 * n)(*tokens),
            None,
            (ctypes.c_int32 * n)(*positions),
            (ctypes.c_int32 * n)(*([1] * n)),
            pointers,
            (ctypes.c_int8 * n)(*last),
        )
        status = self.lib.llama_decode(self.handle, batch)
        self.lib.llama_synchronize(self.handle)
        if status != 0:
            sys.exit(f"llama_cpp.py: llama_decode returned {status}")


def time_prompt(context: Context, num_tokens: int, draw: Callable[[], int]) -> float:
    """Seconds for one prompt."""
    context.clear()
    tokens = [draw() for _ in range(num_tokens)]
    start = time.perf_counter()
    context.decode(tokens, range(num_tokens), [0] * num_tokens, logits="last")
    return time.perf_counter() - start


def time_decode(context: Context, num_seqs: int, prompt_len: int, num_tokens: int, draw: Callable[[], int]) -> float:
    """Seconds to decode `num_tokens` for each of `num_seqs` sequences, after their prompts."""
    context.clear()
    rows = range(num_seqs)
    for first in range(0, num_seqs, 16):  # prompts in batches of at most 512 tokens
        part = [r for r in rows if first <= r < first + 16]
        context.decode(
            [draw() for _ in part for _ in range(prompt_len)],
            [p for _ in part for p in range(prompt_len)],
            [r for r in part for _ in range(prompt_len)],
            logits="each",
        )
    start = time.perf_counter()
    for step in range(num_tokens):
        context.decode([draw() for _ in rows], [prompt_len + step] * num_seqs, rows, logits="each")
    return time.perf_counter() - start


def bench(options: argparse.Namespace) -> None:
    """Print one JSON object a test."""
    lib = load_library(options.library)
    model = Model(lib, options.model)
    source = random.Random(1)  # noqa: S311 - any tokens will do
    system = lib.llama_print_system_info().decode().strip()

    def draw() -> int:
        return source.randrange(model.vocab_size)

    def report(test: str, num_seqs: int, seq_len: int, work: int, run: Callable[[Context], float]) -> None:
        context = Context(
            model, seq_len=seq_len, num_seqs=num_seqs, threads=options.threads, flash_attention=options.flash_attn
        )
        run(context)
        seconds = [run(context) for _ in range(options.repeats)]
        context.close()
        rates = [work / s for s in seconds]
        line = {"test": test, "tokens_per_s": round(statistics.median(rates), 3), "best": round(max(rates), 3)}
        print(json.dumps(line | {"flash_attn": options.flash_attn, "system_info": system}), flush=True)

    p, n = options.prompt, options.gen
    if p:
        report(f"pp{p}", 1, p, p, lambda c: time_prompt(c, p, draw))
    if n:
        report(f"tg{n}", 1, n + 1, n, lambda c: time_decode(c, 1, 1, n, draw))
    for b in options.batch:
        report(
            f"b{b}", b, 2 * BATCH_PROMPT, b * BATCH_PROMPT,
            lambda c, b=b: time_decode(c, b, BATCH_PROMPT, BATCH_PROMPT, draw),
        )  # fmt: skip


def logits(options: argparse.Namespace) -> None:
    """Write the logits at every position of every window to stdout: float32 [tokens, vocabulary], native order."""
    tokens = array("i", Path(options.tokens).read_bytes())
    model = Model(load_library(options.library), options.model)
    context = Context(
        model,
        seq_len=options.window,
        num_seqs=1,
        threads=options.threads,
        flash_attention=options.flash_attn,
        kv_f32=options.kv_f32,
    )
    for start in range(0, len(tokens), options.window):
        part = tokens[start : start + options.window]
        context.clear()
        context.decode(part, range(len(part)), [0] * len(part), logits="all")
        for row in range(len(part)):
            pointer = context.lib.llama_get_logits_ith(context.handle, row)
            sys.stdout.buffer.write(ctypes.string_at(pointer, 4 * model.vocab_size))
    sys.stdout.buffer.flush()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("model")
    shared.add_argument("-t", "--threads", type=int, default=2)
    shared.add_argument("--flash-attn", choices=FLASH_ATTENTION, default="auto")
    shared.add_argument("--library", help="a shared library that exports llama.h; default: xllamacpp's")
    verb = verbs.add_parser("bench", parents=[shared])
    verb.add_argument("-p", "--prompt", type=int, default=512)
    verb.add_argument("-n", "--gen", type=int, default=64)
    verb.add_argument("-b", "--batch", type=lambda s: [int(b) for b in s.split(",") if b], default=[8, 32])
    verb.add_argument("-r", "--repeats", type=int, default=3)
    verb.add_argument("--json", action="store_true", help="the only output there is")
    verb.set_defaults(run=bench)
    verb = verbs.add_parser("logits", parents=[shared])
    verb.add_argument("tokens")
    verb.add_argument("--window", type=int, default=512)
    verb.add_argument("--kv-f32", action="store_true", help="keys and values in float32: for the oracle")
    verb.set_defaults(run=logits)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
