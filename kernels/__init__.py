"""Kernels: for every stem a NumPy meaning, a Numba twin, a CuPy launcher and a ``.cu`` file."""
