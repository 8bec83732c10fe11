"""OpenAI's chat, completions and models, with vLLM's extensions."""
