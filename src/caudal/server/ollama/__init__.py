"""Ollama's own API: chat, generate and the lists of models. Streams are lines of JSON."""
