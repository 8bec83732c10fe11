"""ISA objects hold no weak symbols: the linker could hand an AVX-512 copy to a machine without it."""

import shutil
import subprocess

import pytest
from source_tree import ROOT

SCRIPT = ROOT / "scripts" / "check_isa_objects.sh"


def test_isa_objects_have_no_weak_symbols():
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not installed: runs wherever binutils is, CI included")
    if not any("asan" not in path.parts for path in (ROOT / "build").rglob("isa_*.dir/**/*.o")):
        pytest.skip("no native objects under build/: runs after `make native` or an editable install, as in CI")
    done = subprocess.run([SCRIPT, ROOT / "build"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_script_sees_a_weak_symbol(tmp_path):
    compiler = shutil.which("g++")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("needs g++ and nm: runs wherever they are, CI included")
    folder = tmp_path / "isa_x.dir"
    folder.mkdir()
    (tmp_path / "x.cpp").write_text("inline int f(int x) { return x; }\nint g(int x) { return f(x); }\n")
    subprocess.run([compiler, "-O0", "-c", tmp_path / "x.cpp", "-o", folder / "x.o"], check=True)
    done = subprocess.run([SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "f(int)" in done.stderr
