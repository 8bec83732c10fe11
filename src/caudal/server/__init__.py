"""The HTTP side: wire protocols in front of an engine client."""
