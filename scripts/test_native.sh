#!/usr/bin/env bash
# Build the native check programs for this machine and run them on every instruction set that it has; on x86-64 also
# on AVX-512 and AVX-VNNI as emulated by AVX2.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake -S tests/kernels/native -B build/checks -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build/checks
for source in tests/kernels/native/*.cpp; do
  "build/checks/$(basename "$source" .cpp)"
done
echo "test-native: passed"
