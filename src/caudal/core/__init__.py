"""The sans-IO heart: requests, KV blocks, and who computes what in each step. Standard library only."""
