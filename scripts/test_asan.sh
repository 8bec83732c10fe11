#!/usr/bin/env bash
# Build the native check programs with the address and undefined-behaviour sanitizers, and run them on every
# instruction set of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake -S tests/kernels/native -B build/asan -G Ninja -DCMAKE_BUILD_TYPE=Release -DCAUDAL_SANITIZE=ON >/dev/null
cmake --build build/asan
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
for source in tests/kernels/native/*.cpp; do
  check=$(basename "$source" .cpp)
  echo "test-asan: $check"
  "build/asan/$check"
done
echo "test-asan: passed"
