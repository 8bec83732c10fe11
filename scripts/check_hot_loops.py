"""Look for sums that the compiler spills in the hot loops of the matmul kernels.

    python scripts/check_hot_loops.py BUILD_DIR [--objdump OBJDUMP] [--verbose]

A compiler that reorders the additions of a tile runs out of registers and moves every second or third product to the
stack and back, which halves the speed. So the objects of the x86 instruction sets under BUILD_DIR are disassembled.
A loop is a backward jump, an innermost one holds no other, and a hot one multiplies bytes. In each the vector
registers stored to the stack are counted. Some must be: a tile of six columns has twelve sums and as many results,
and there are sixteen registers. That is one store for several products; MAX_STORES is far above it and far below what
goes wrong. Results that the kernels themselves keep in memory are reached by another register and do not count.

Exits with 1 if a loop stores more, or if there is nothing to look at. Objects under asan/ do not count: they are built
without inlining and never shipped.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_STORES = 0.5  # for each product
OBJECTS = ("isa_avx2.dir", "isa_avx_vnni.dir", "isa_avx512.dir")
HOT_FUNCTION = re.compile(r"\btile_(32|256)<")
PRODUCT = re.compile(r"vpmaddubsw|vpdpbusd")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(?:\{\w+\} )?(\S+)\s*(.*)$")
JUMP_TARGET = re.compile(r"^([0-9a-f]+)\b")
STORE = re.compile(r"^%[xyz]mm\d+,-?[0-9a-fx]*\((%rsp|%rbp)")


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly."""

    address: int
    name: str
    operands: str


@dataclass(frozen=True)
class Loop:
    """An innermost loop that multiplies bytes, and its stores of vector registers to the stack."""

    function: str
    num_products: int
    stores: tuple[Instruction, ...]

    @property
    def is_bad(self) -> bool:
        """Whether more is stored than the results of a tile explain."""
        return len(self.stores) > MAX_STORES * self.num_products


def functions(listing: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Yield the name and the instructions of every function in objdump's output."""
    name = ""
    body: list[Instruction] = []
    for line in listing.splitlines():
        if header := FUNCTION.match(line):
            if body:
                yield name, body
            name, body = header[1], []
        elif found := INSTRUCTION.match(line):
            body.append(Instruction(int(found[1], 16), found[2], found[3]))
    if body:
        yield name, body


def innermost_loops(body: Sequence[Instruction]) -> list[list[Instruction]]:
    """Return the stretches from the target of a backward jump to the jump that hold no other such stretch."""
    ranges = []
    for instruction in body:
        target = JUMP_TARGET.match(instruction.operands) if instruction.name.startswith("j") else None
        if target and body[0].address <= int(target[1], 16) <= instruction.address:
            ranges.append((int(target[1], 16), instruction.address))
    inner = [
        (first, last)
        for first, last in ranges
        if not any(first <= other[0] and other[1] <= last and other != (first, last) for other in ranges)
    ]
    return [[i for i in body if first <= i.address <= last] for first, last in inner]


def hot_loops(listing: str) -> list[Loop]:
    """Return the hot loops in objdump's output."""
    loops = []
    for name, body in functions(listing):
        if not HOT_FUNCTION.search(name):
            continue
        # Without a frame pointer %rbp is a register like others.
        stack = {"%rsp", "%rbp"} if any(i.operands == "%rsp,%rbp" for i in body) else {"%rsp"}
        for loop in innermost_loops(body):
            num_products = sum(PRODUCT.match(i.name) is not None for i in loop)
            stores = tuple(i for i in loop if (found := STORE.match(i.operands)) and found[1] in stack)
            if num_products:
                loops.append(Loop(name, num_products, stores))
    return loops


def isa_objects(build: Path) -> list[Path]:
    """Return the objects of the instruction sets that multiply bytes."""
    return sorted(p for p in build.rglob("*.o") if "asan" not in p.parts and not set(OBJECTS).isdisjoint(p.parts))


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main(arguments: list[str]) -> int:
    """Check every object and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--verbose", action="store_true", help="show the stores themselves")
    options = parser.parse_args(arguments)
    loops = []
    for path in isa_objects(options.build):
        command = [options.objdump, "-d", "-C", "--no-show-raw-insn", str(path)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
        loops += hot_loops(listing)
    for loop in loops:
        if loop.is_bad:
            say(f"{loop.function}: {len(loop.stores)} stores to the stack for {loop.num_products} products")
            for i in loop.stores if options.verbose else ():
                say(f"  {i.address:x}: {i.name} {i.operands}")
    if not loops:
        sys.stderr.write(f"check_hot_loops: no loops that multiply bytes under {options.build}: build first\n")
        return 1
    num_bad = sum(loop.is_bad for loop in loops)
    say(f"check_hot_loops: {len(loops)} hot loops, {num_bad} that spill")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
