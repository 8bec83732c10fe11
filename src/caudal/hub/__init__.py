"""From a model's name to its file on this disk."""
