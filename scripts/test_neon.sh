#!/usr/bin/env bash
# Build the native check programs for AArch64 and run them under qemu on three processors: everything, dot products
# only, and the baseline; each with the best instruction set that it has. Correctness only; timings under emulation mean nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "test-neon: installing g++-aarch64-linux-gnu and qemu-user" >&2
    apt-get -qq update || true
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
      g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null || true
  fi
fi
if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
  echo "test-neon: SKIPPED: needs aarch64-linux-gnu-g++ and qemu-aarch64" \
    "(Debian and Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user)"
  exit 0
fi

cmake -S tests/kernels/native -B build/neon -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_EXE_LINKER_FLAGS=-static >/dev/null
cmake --build build/neon

scripts/check_isa_objects.sh build/neon aarch64-linux-gnu-nm
# Emulation is slow: one job a core, and the smaller processors run the one instruction set that they are here for.
jobs=$(
  for source in tests/kernels/native/*.cpp; do
    check=build/neon/$(basename "$source" .cpp)
    printf '%s\n' "max $check neon_i8mm" "cortex-a76 $check neon_dotprod" "cortex-a72 $check neon"
  done
)
xargs -P "$(nproc)" -L 1 sh -c '
  start=$(date +%s)
  output=$(qemu-aarch64 -cpu "$@" 2>&1) && status=0 || status=$?
  printf "%s\ntest-neon: %s: status %s, %s s\n" "$output" "$*" "$status" "$(($(date +%s) - start))"
  [ "$status" = 0 ]
' job <<<"$jobs"
echo "test-neon: passed"
