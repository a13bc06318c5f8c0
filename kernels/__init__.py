"""Kernels: for each stem a NumPy reference, a Numba version, a CuPy launcher and a ``.cu`` file."""
