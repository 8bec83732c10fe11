"""Keys, their limits and what they used: in SQLite, in one file of a state directory. Imports no web framework."""
