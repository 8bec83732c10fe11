"""Make the documents' tables from bench/results, so that no figure is typed by hand.

    python bench/report.py            print the tables
    python bench/report.py --write    put them between the markers in README.md, docs/load.md and the Spanish ones
    python bench/report.py --check    fail if they hold anything else

The last line of compare.jsonl for each model and test counts, among those of the last line's processor and of runs
without --exact.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from load_table import load_table
from machine import MODEL_FILES, RESULTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
WORDS = {
    "README.md": {
        "model": "model", "test": "test", "ratio": "ratio", "of_limit": "Caudal, of the limit",
        "memory": "memory", "products": "int8", "none": "Not measured yet.",
        "note": "{cpu}, {threads} threads, commit {commit}; medians of {rounds} interleaved rounds; Caudal with "
        "{ours}, llama.cpp built for {theirs} and with the best of its flags. Of the limit: the weights read, of what "
        "plain reading gave in that moment, or the products with weights, of what the int8 units gave. Made by "
        "`python bench/compare.py` and `python bench/report.py --write`.",
    },
    "README.es.md": {
        "model": "modelo", "test": "prueba", "ratio": "razón", "of_limit": "Caudal, del límite",
        "memory": "memoria", "products": "int8", "none": "Todavía sin medir.",
        "note": "{cpu}, {threads} hilos, commit {commit}; medianas de {rounds} rondas intercaladas; Caudal con {ours}, "
        "llama.cpp compilado para {theirs} y con sus mejores opciones. Del límite: los pesos leídos, de lo que daba "
        "en ese momento una simple lectura, o los productos con pesos, de lo que daban las unidades int8. Hecho con "
        "`python bench/compare.py` y `python bench/report.py --write`.",
    },
}  # fmt: skip
TESTS = {
    "pp512": "prefill, 512 tokens",
    "tg64": "decode, 1 stream",
    "b8": "decode, 8 streams",
    "b32": "decode, 32 streams",
}
PRUEBAS = {"pp512": "prompt, 512 tokens", "tg64": "1 flujo", "b8": "8 flujos", "b32": "32 flujos"}


def latest_rows() -> list[dict[str, Any]]:
    """Return the rows that count, by model and test."""
    path = RESULTS / "compare.jsonl"
    if not path.exists():
        return []
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if not row["exact"]]
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["cpu"] == rows[-1]["cpu"] and row["threads"] == rows[-1]["threads"]:
            latest[row["model"], row["test"]] = row
    return sorted(latest.values(), key=lambda row: (place(row["model"], MODEL_FILES), place(row["test"], TESTS)))


def place(name: str, known: dict[str, str]) -> int:
    """Return where a name stands in a table, or that it comes last."""
    return [*known, name].index(name)


def of_limit(row: dict[str, Any], words: dict[str, str]) -> str:
    """Return which limit a test is nearer to, and how near."""
    if "read_fraction" not in row:
        return ""
    limit = max(("read_fraction", "memory"), ("product_fraction", "products"), key=lambda pair: row[pair[0]])
    return f"{row[limit[0]]:.0%} {words[limit[1]]}"


def table(readme: str) -> str:
    """Return the table in a README's language."""
    words, rows = WORDS[readme], latest_rows()
    if not rows:
        return words["none"]
    names = TESTS if readme == "README.md" else PRUEBAS
    lines = [
        (
            f"| {words['model']} | {words['test']} | Caudal, tokens/s | llama.cpp, tokens/s | {words['ratio']} "
            f"| {words['of_limit']} |"
        ),
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['model']} | {names.get(row['test'], row['test'])} | {row['caudal']:.1f} | {row['llama_cpp']:.1f} "
        f"| {row['ratio']:.2f} | {of_limit(row, words)} |"
        for row in rows
    ]
    last = rows[-1]
    builds = {"ours": last["caudal_info"]["isa"], "theirs": best_extension(last["llama_cpp_info"])}
    return "\n".join(lines) + "\n\n" + words["note"].format(**last, **builds)


def best_extension(llama_cpp_info: dict[str, str]) -> str:
    """Return the widest vector extension that llama.cpp says it was built for."""
    on = {part.split("=")[0].strip() for part in llama_cpp_info.get("system_info", "").replace(":", "|").split("|")}
    return next((name for name in ("AVX512", "AVX2", "AVX", "NEON") if name in on), "this machine").lower()


TABLES: dict[str, Callable[[], str]] = {
    "README.md": lambda: table("README.md"),
    "README.es.md": lambda: table("README.es.md"),
    "docs/load.md": lambda: load_table("en"),
    "docs/load.es.md": lambda: load_table("es"),
}


def with_table(document: str) -> tuple[str, str]:
    """Return a document as it is, and as it should be."""
    text = (ROOT / document).read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{document} has no {BEGIN} … {END}")
    return text, f"{before}{BEGIN}\n{TABLES[document]()}\n{END}{after}"


def main() -> None:
    """Print, write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not options.write and not options.check:
        print(table("README.md"), load_table("en"), sep="\n\n")
        return
    for document in TABLES:
        found, wanted = with_table(document)
        if options.check and found != wanted:
            sys.exit(f"{document}: its table is not that of bench/results; run python bench/report.py --write")
        if options.write:
            (ROOT / document).write_text(wanted)


if __name__ == "__main__":
    main()
