"""The tables of docs/load.md and docs/load.es.md, from bench/results/load.jsonl. Written by report.py."""

from __future__ import annotations

import json
from typing import Any

from machine import RESULTS

WORDS = {
    "en": {
        "none": "Not measured yet.",
        "chat": "model | users | server | tokens/s | first token, s: p50 | p99 | between tokens, ms: p50 | p99 "
        "| answers | failures",
        "note": "{cpu}, {threads} threads, commit {commit}; {rounds} rounds of {seconds:.0f} s for each server and "
        "point, in turns; llama-server {llama_server_flags}. `>`: not over when the time was up. `bench/load.py`",
        "long": "model | server | between tokens, ms, alone: p50 | p99 | beside the prompt: p50 | p99 | ratio of p99 "
        "| first token of the prompt, s",
        "long_note": "{cpu}, {threads} threads, commit {commit}; {streams} streams and a prompt of {prompt_tokens} "
        "tokens; medians of {rounds} rounds. `bench/load.py --long-prompt`",
    },
    "es": {
        "none": "Todavía sin medir.",
        "chat": "modelo | usuarios | servidor | tokens/s | primer token, s: p50 | p99 | entre tokens, ms: p50 | p99 "
        "| respuestas | fallos",
        "note": "{cpu}, {threads} hilos, commit {commit}; {rounds} rondas de {seconds:.0f} s por servidor y punto, por "
        "turnos; llama-server {llama_server_flags}. `>`: no había terminado al acabar el tiempo. `bench/load.py`",
        "long": "modelo | servidor | entre tokens, ms, sin él: p50 | p99 | junto al prompt: p50 | p99 | razón de p99 "
        "| primer token del prompt, s",
        "long_note": "{cpu}, {threads} hilos, commit {commit}; {streams} flujos y un prompt de {prompt_tokens} tokens; "
        "medianas de {rounds} rondas. `bench/load.py --long-prompt`",
    },
}  # fmt: skip
SIDES = {"caudal": "Caudal", "llama_server": "llama-server"}


def load_table(language: str) -> str:
    """Return the table of chats and that of the long prompt."""
    rows, words = latest_rows(), WORDS[language]
    chats = [row for row in rows if row["test"] == "chat"]
    longs = [row for row in rows if row["test"] == "long_prompt"]
    parts = []
    if chats:
        parts += [header(words["chat"]) + "".join(chat_lines(row) for row in chats), words["note"].format(**chats[-1])]
    if longs:
        parts += [header(words["long"]) + "".join(long_lines(row) for row in longs)]
        parts += [words["long_note"].format(**longs[-1])]
    return "\n\n".join(part.strip() for part in parts) or words["none"]


def latest_rows() -> list[dict[str, Any]]:
    """Return the last row of each test, model and number of users on the last row's processor.

    Chats count where both servers had them; the bar of the long prompt is Caudal's alone.
    """
    path = RESULTS / "load.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = [row for row in rows if (row["test"] == "long_prompt" or "llama_server" in row) and not row["caudal_flags"]]
    latest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        if (row["cpu"], row["threads"]) == (rows[-1]["cpu"], rows[-1]["threads"]):
            latest[row["test"], row["model"], row.get("users", 0)] = row
    return list(latest.values())


def header(columns: str) -> str:
    """Return a table's first two lines."""
    return f"| {columns} |\n|{'---|' * (columns.count(' | ') + 1)}\n"


def line(cells: list[Any]) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def chat_lines(row: dict[str, Any]) -> str:
    """Return the lines of one point, a server each."""

    def cell(figures: dict[str, Any], name: str, scale: float, digits: int) -> str:
        value = figures[name]
        sign = "> " if name in figures["at_least"] else ""
        return "–" if value is None else f"{sign}{value * scale:.{digits}f}"  # noqa: RUF001 - a dash

    lines = ""
    for side, label in SIDES.items():
        figures = row[side]
        cells = [row["model"], row["users"], label, f"{figures['tokens_per_s']:.1f}"]
        cells += [cell(figures, f"first_token_{q}_s", 1, 2) for q in ("p50", "p99")]
        cells += [cell(figures, f"between_tokens_{q}_s", 1000, 0) for q in ("p50", "p99")]
        lines += line([*cells, figures["answers"], figures["failures"]])
    return lines


def long_lines(row: dict[str, Any]) -> str:
    """Return the lines of the long prompt among one model's streams."""
    lines = ""
    for side, label in SIDES.items():
        if side not in row:
            continue
        figures = row[side]
        times = [f"{figures[f'{part}_{q}_s'] * 1000:.0f}" for part in ("alone", "beside") for q in ("p50", "p99")]
        sign = "" if figures["prompt_was_answered"] == 1 else "> "
        first = f"{sign}{figures['first_token_s']:.1f}"
        lines += line([row["model"], label, *times, f"{figures['ratio_p99']:.2f}", first])
    return lines
