"""The native CPU backend. The only room that imports caudal._native."""
