"""From a model's name to its file on this disk."""

from __future__ import annotations

from caudal.hub.resolve import ModelEntry, list_models, resolve

__all__ = ["ModelEntry", "list_models", "resolve"]
