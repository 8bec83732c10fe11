"""What a token of a vocabulary is. Source: the GGUF specification, tokenizer.ggml.token_type."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
