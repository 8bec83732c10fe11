"""Anthropic's Messages API: messages, count_tokens, and the list of models in its shape."""
