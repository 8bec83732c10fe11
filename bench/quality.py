"""How much quantised arithmetic changes a model: KL divergence from the float32 model, and top-1 agreement.

    python bench/quality.py [MODEL …] --llama-python PYTHON_WITH_XLLAMACPP

The oracle is the same GGUF file with every tensor dequantised to F32 (by caudal.quant), run by llama.cpp with float32
activations and KV cache: weights, code and authors apart from the kernels under test. `--oracle reference` runs it
with Caudal's numpy backend instead, and `--oracle exact` runs the file itself with Caudal --exact, as fast as Caudal
is; neither needs llama.cpp. Compared with it, on the same tokens in windows that start afresh: Caudal as it is by
default, Caudal --exact, both with an int8 KV cache, and llama.cpp on the quantised file.

A line per model and contestant is appended to bench/results/quality.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from machine import ROOT, append_result, facts, model_paths, short_name

from caudal.backends.registry import make_backend
from caudal.checkpoint import open_checkpoint
from caudal.checkpoint.gguf_writer import write_gguf
from caudal.config import EngineConfig
from caudal.core.step_plan import PlannedRow, StepPlan
from caudal.engine.runner import Runner
from caudal.engine.step_batch import build_step_batch
from caudal.models.load import load_model
from caudal.tokenizer.from_gguf import load_gguf_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CORPUS = (
    "bench/data/quijote.txt",
    "bench/data/english.txt",
    "bench/data/code.txt",
    "bench/data/several.txt",
    "LICENSE",
)
BLOCK_SIZE = 32
CONTESTANTS: dict[str, dict[str, Any]] = {
    "caudal": {},
    "caudal --exact": {"exact": True},
    "caudal, int8 KV": {"kv_cache_dtype": "int8"},
    "--exact, int8 KV": {"exact": True, "kv_cache_dtype": "int8"},
}
CHUNK = 64  # rows of logits at a time: a vocabulary of 262,144 makes a row of 1 MiB


def corpus_windows(model: Path, num_tokens: int, window: int) -> list[list[int]]:
    """Return windows of token ids; each begins as a prompt of this model does."""
    with open_checkpoint(model) as checkpoint:
        tokenizer = load_gguf_tokenizer(checkpoint.metadata, path=model)
    start = tokenizer.encode("")
    body = window - len(start)
    ids = tokenizer.encode("\n\n".join((ROOT / name).read_text() for name in CORPUS), add_special_tokens=False)
    if len(ids) < num_tokens:
        sys.exit(f"quality.py: the corpus has {len(ids)} tokens for this model; ask for fewer than {num_tokens}")
    return [start + ids[i : i + body] for i in range(0, num_tokens - body + 1, body)]


def write_f32(model: Path, out: Path) -> None:
    """Write the model with every tensor dequantised."""
    with open_checkpoint(model) as checkpoint:
        metadata = dict(checkpoint.metadata)
        metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)  # not u32
        tensors = {
            name: ("F32", tensor.shape, lambda tensor=tensor: tensor.dequantize().view(np.uint8))
            for name, tensor in checkpoint.tensors.items()
        }
        write_gguf(out, metadata, tensors)


def caudal_logits(model: Path, windows: list[list[int]], threads: int, **options: Any) -> Iterator[NDArray[np.float32]]:
    """Yield chunks [CHUNK, V] of logits, computed as prompts of `CHUNK` tokens a step."""
    length = max(map(len, windows))
    config = EngineConfig(model_path=str(model), max_model_len=length, num_threads=threads, max_num_seqs=1, **options)
    with open_checkpoint(model) as checkpoint:
        machine = make_backend(config)
        runner = Runner(load_model(checkpoint, machine, length), machine, config, length)
        num_blocks = -(-length // BLOCK_SIZE)
        table = tuple(range(num_blocks))
        for ids in windows:
            for start in range(0, len(ids), CHUNK):
                count = min(CHUNK, len(ids) - start)
                row = PlannedRow(0, start, count, count, samples=False, block_tables=(table,) * len(runner.groups))
                batch = build_step_batch(StepPlan(0, BLOCK_SIZE, (row,)), lambda _, ids=ids: ids)
                yield runner.forward(batch).copy()


def llama_logits(
    python: str, model: Path, windows: list[list[int]], vocab_size: int, *options: str
) -> Iterator[NDArray[np.float32]]:
    """Yield the same chunks from llama.cpp, read from a pipe."""
    with tempfile.NamedTemporaryFile(suffix=".i32") as tokens:
        tokens.write(np.concatenate([np.array(w, np.int32) for w in windows]).tobytes())
        tokens.flush()
        driver = Path(__file__).with_name("llama_cpp.py")
        command = [python, str(driver), "logits", str(model), tokens.name, "--window", str(len(windows[0])), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for ids in windows:
                for start in range(0, len(ids), CHUNK):
                    count = min(CHUNK, len(ids) - start)
                    data = process.stdout.read(count * vocab_size * 4)
                    if len(data) < count * vocab_size * 4:
                        sys.exit(f"quality.py: llama.cpp ended early: {' '.join(command)}")
                    yield np.frombuffer(data, np.float32).reshape(count, vocab_size)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log-probabilities [n, V]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


@dataclass
class Divergence:
    """What one contestant's distributions differ by, position by position."""

    name: str
    kl: list[float] = field(default_factory=list)
    same_top: list[bool] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)

    def add(self, oracle: NDArray[np.float64], logits: NDArray[np.float32], next_ids: list[int]) -> None:
        """Take in a chunk; `next_ids` are the tokens that follow, one fewer at a window's end."""
        ours = log_softmax(logits)
        self.kl += (np.exp(oracle) * (oracle - ours)).sum(axis=-1).tolist()
        self.same_top += (oracle.argmax(axis=-1) == ours.argmax(axis=-1)).tolist()
        self.nll += (-ours[np.arange(len(next_ids)), next_ids]).tolist()

    def row(self) -> dict[str, Any]:
        """Return the figures for a results line."""
        return {
            "contestant": self.name,
            "mean_kl": float(np.mean(self.kl)),
            "p99_kl": float(np.quantile(self.kl, 0.99)),
            "max_kl": float(np.max(self.kl)),
            "top1_agreement": float(np.mean(self.same_top)),
            "perplexity": float(np.exp(np.mean(self.nll))),
            "tokens": len(self.kl),
        }


def measure(model: Path, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of one model: the contestants named in the options, and the oracle's own perplexity."""
    windows = corpus_windows(model, options.tokens, options.window)
    with open_checkpoint(model) as checkpoint:
        vocab_size = checkpoint.tensors["token_embd.weight"].shape[0]
    f32 = folder / f"{model.stem}.f32.gguf"
    if options.oracle != "exact":
        write_f32(model, f32)
    shared = ("-t", str(options.threads))
    if options.oracle == "exact":
        oracle = caudal_logits(model, windows, options.threads, exact=True)
    elif options.oracle == "reference":
        oracle = caudal_logits(f32, windows, options.threads, backend="reference")
    else:
        flags = (*shared, "--flash-attn", "off", "--kv-f32")
        oracle = llama_logits(options.llama_python, f32, windows, vocab_size, *flags)
    streams = {
        **{
            name: lambda settings=settings: caudal_logits(model, windows, options.threads, **settings)
            for name, settings in CONTESTANTS.items()
        },
        "llama.cpp": lambda: llama_logits(options.llama_python, model, windows, vocab_size, *shared),
    }
    if not options.llama_python:
        del streams["llama.cpp"]
    contestants = {name: (Divergence(name), start()) for name, start in streams.items()}
    own = Divergence("oracle")
    starts = [(ids, start) for ids in windows for start in range(0, len(ids), CHUNK)]
    for (ids, start), logits in zip(starts, oracle, strict=True):
        truth = log_softmax(logits)
        next_ids = ids[start + 1 : start + 1 + len(logits)]
        own.add(truth, logits, next_ids)
        for divergence, stream in contestants.values():
            divergence.add(truth, next(stream), next_ids)
    return [own.row(), *(divergence.row() for divergence, _ in contestants.values())]


def main() -> None:
    """Measure every model and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths, or names such as SmolLM2-135M; default: the two small ones")
    parser.add_argument("--llama-python", help="a Python with the xllamacpp wheel")
    parser.add_argument("--oracle", choices=("llama.cpp", "reference", "exact"), default="llama.cpp")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="append here instead of bench/results/quality.jsonl")
    options = parser.parse_args()
    if options.oracle == "llama.cpp" and not options.llama_python:
        parser.error("give --llama-python, or --oracle reference or exact")
    print(f"{'model':<20}{'contestant':<18}{'mean KL':>11}{'p99 KL':>11}{'top-1':>8}{'perplexity':>12}")
    for model in model_paths(options.models or ["SmolLM2-135M", "Gemma-3-270M"]):
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(model, options, Path(folder))
        for row in rows:
            oracle = "caudal --exact" if options.oracle == "exact" else f"{options.oracle}, F32"
            identity = {"model": short_name(model), "oracle": oracle, "window": options.window}
            append_result("quality", identity | row | facts(), options.out)
            print(
                f"{short_name(model):<20}{row['contestant']:<18}{row['mean_kl']:>11.2e}{row['p99_kl']:>11.2e}"
                f"{row['top1_agreement']:>8.2%}{row['perplexity']:>12.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
