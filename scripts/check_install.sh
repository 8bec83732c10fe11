#!/usr/bin/env bash
# Build the wheel as a user's pip does, install it into a fresh environment, and hold it to its promises:
# wheel < 10 MB, at most 25 packages beside Caudal, no torch and no pydantic, no weak symbols in ISA objects.
set -euo pipefail
cd "$(dirname "$0")/.."
max_packages=25 max_wheel_bytes=10000000

rm -rf build/check-install
mkdir -p build/check-install
# The same CMake as for .venv: another one writes the flags in another order, and the compiler's cache misses them all.
PATH="$PWD/.venv/bin:$PATH" .venv/bin/pip wheel -q --no-deps -w build/check-install .
wheel=$(echo build/check-install/caudal-*.whl)
bytes=$(stat -c %s "$wheel")
echo "wheel: $(basename "$wheel"), $bytes bytes (limit $max_wheel_bytes)"
[ "$bytes" -lt "$max_wheel_bytes" ]

.venv/bin/python -m venv build/check-install/venv
bin=build/check-install/venv/bin
$bin/pip install -q "$wheel"
packages=$($bin/pip list --format=freeze --exclude pip --exclude setuptools --exclude wheel --exclude caudal | cut -d= -f1)
count=$(wc -l <<<"$packages")
echo "packages: $count (limit $max_packages):" $packages
[ "$count" -le "$max_packages" ]
if grep -qiE '^(torch|pydantic)' <<<"$packages"; then
  echo "installing the core brought torch or pydantic" >&2
  exit 1
fi
(cd / && "$OLDPWD/$bin/caudal" version)

scripts/check_isa_objects.sh build
