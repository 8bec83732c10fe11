"""Copy a GGUF file, with another chat template in it: other_template.py MODEL TEMPLATE TARGET."""

from __future__ import annotations

import sys
from pathlib import Path

from caudal.checkpoint import open_checkpoint
from caudal.checkpoint.gguf_writer import write_gguf


def copy_with_template(model, template, target):
    """Write `target`, all of it or nothing."""
    with open_checkpoint(model) as checkpoint:
        metadata = {**checkpoint.metadata, "tokenizer.chat_template": template}
        tensors = {tensor.name: (tensor.format, tensor.shape, tensor.data) for tensor in checkpoint.tensors.values()}
        part = target.with_suffix(".part")
        write_gguf(part, metadata, tensors)
        part.rename(target)


if __name__ == "__main__":
    copy_with_template(sys.argv[1], Path(sys.argv[2]).read_text(encoding="utf-8"), Path(sys.argv[3]))
