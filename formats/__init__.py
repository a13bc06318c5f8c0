"""Format classes: arrays with a sparsity pattern."""
