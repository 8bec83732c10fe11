"""Text to tokens and back: vocabularies, detokenisation, stop strings, chat templates."""
