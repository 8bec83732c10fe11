"""Models, made of backend operations alone."""
