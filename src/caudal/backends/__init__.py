"""The machines that models run on: one interface (base), the numpy oracle (reference), native kernels (cpu)."""
