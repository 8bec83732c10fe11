"""Tool calls and reasoning in what models write, as each model's template teaches it."""
