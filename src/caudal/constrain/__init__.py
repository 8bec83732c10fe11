"""What an answer must look like, as grammars of llguidance, and which tokens keep to them."""
