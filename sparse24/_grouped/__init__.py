"""Products of experts: their offsets, kernels and epilogues."""
