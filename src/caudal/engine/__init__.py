"""The engine: plans, computes and samples steps, in this process or in one of its own."""
