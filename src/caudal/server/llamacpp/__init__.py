"""llama-server's own routes: native completions, filling in, and what its clients look a server up by."""
