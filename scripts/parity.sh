#!/bin/sh
# Makes the reference logits anew and checks the committed ones: parity.sh PYTHON_WITH_TORCH PYTHON_WITH_PYTEST
set -eu
cd "$(dirname "$0")/.."
CAUDAL_PARITY_PYTHON=$1 exec "$2" -m pytest tests/parity
