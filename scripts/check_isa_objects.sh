#!/usr/bin/env bash
# The linker may keep any one copy of a weak symbol. An object compiled for AVX-512 must therefore hold none, or a
# machine without it could be given its copy of a shared inline function. See CONTRIBUTING.md, "A kernel".
#
# Objects under asan/ do not count: they are built without inlining and never shipped.
#
#   scripts/check_isa_objects.sh BUILD_DIR [NM]
set -euo pipefail
build=$1 nm=${2:-nm}
mapfile -t objects < <(find "$build" -path '*isa_*.dir*' -name '*.o' -not -path '*/asan/*' | sort)
if [ ${#objects[@]} -eq 0 ]; then
  echo "check_isa_objects: no isa_* objects under $build: build first" >&2
  exit 1
fi
bad=0
for object in "${objects[@]}"; do
  if symbols=$("$nm" --defined-only -C "$object" | grep ' [WVu] '); then
    printf '%s: weak symbols:\n%s\n' "$object" "$symbols" >&2
    bad=1
  fi
done
[ $bad = 0 ] && echo "check_isa_objects: ${#objects[@]} objects, no weak symbols"
exit $bad
