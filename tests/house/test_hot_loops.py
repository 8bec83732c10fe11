"""The hot loops of the kernels keep their sums in registers: a spill at every product halves the speed."""

import platform
import shutil
import subprocess
import sys

import pytest
from source_tree import ROOT

SCRIPT = ROOT / "scripts" / "check_hot_loops.py"
# One loop with eight products in a function that the checker looks at; %s is what follows each product.
PLANTED = """
template <int> void tile_32(int n) {{
  asm volatile("jmp 2f\\n2: xor %%eax, %%eax" : : : "eax");
  asm volatile(
      "1:\\n"
      ".rept 8\\n vpmaddubsw %%ymm0, %%ymm1, %%ymm2\\n {spill}\\n .endr\\n"
      "decl %0\\n jne 1b" : "+r"(n) : : "memory");
}}
template void tile_32<6>(int);
"""


def run(build):
    return subprocess.run([sys.executable, SCRIPT, build], capture_output=True, text=True, check=False)


def plant(tmp_path, spill):
    compiler = shutil.which("g++")
    if compiler is None or shutil.which("objdump") is None or platform.machine() != "x86_64":
        pytest.skip("needs g++ and objdump on x86-64: runs wherever they are, CI included")
    folder = tmp_path / "isa_avx2.dir"
    folder.mkdir()
    (tmp_path / "x.cpp").write_text(PLANTED.format(spill=spill))
    subprocess.run([compiler, "-O2", "-c", tmp_path / "x.cpp", "-o", folder / "x.o"], check=True)
    return run(tmp_path)


def test_hot_loops_do_not_spill():
    if shutil.which("objdump") is None or platform.machine() != "x86_64":
        pytest.skip("needs objdump (binutils) on x86-64: runs wherever it is, CI included")
    if not any("asan" not in path.parts for path in (ROOT / "build").rglob("isa_avx2.dir/**/*.o")):
        pytest.skip("no native objects under build/: runs after `make native` or an editable install, as in CI")
    done = run(ROOT / "build")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_script_sees_spills(tmp_path):
    done = plant(tmp_path, "vmovdqa %%ymm2, -64(%%rsp)")
    assert done.returncode == 1
    assert "tile_32<6>(int): 8 stores to the stack for 8 products" in done.stdout


@pytest.mark.parametrize(
    "harmless", ["vpaddw %%ymm2, %%ymm3, %%ymm3", "vmovdqa %%ymm2, (%%rdi)", "mov %%rax, 8(%%rsp)"]
)
def test_the_script_sees_nothing_else(tmp_path, harmless):
    done = plant(tmp_path, harmless)
    assert done.returncode == 0, done.stdout
    assert "1 hot loops, 0 that spill" in done.stdout


def test_nothing_to_look_at_is_an_error(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1
    assert "build first" in done.stderr
