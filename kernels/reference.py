"""References for all kernels, in NumPy: short, slow and right.

The CPU and CUDA kernels are tested against these functions, bit for bit where
bits are moved and against float64 where numbers are summed.  Each topic is a file,
``reference_<topic>.py``; the layouts of the hybrid kernels, such as `reference_evict`,
`reference_panel` and `reference_scatter`, are imported from theirs.
"""

from sparse24.kernels.reference_activate import activate_compress, activated, quantise_rows
from sparse24.kernels.reference_arrays import to_dtype, transpose
from sparse24.kernels.reference_compress import (
    codes_to_metadata,
    compress,
    decompress,
    like,
    masked_gradient,
    metadata_to_codes,
    pack_codes,
    pack_metadata,
    stored_mask,
    unpack_codes,
    unpack_metadata,
)
from sparse24.kernels.reference_n_m import compress_n_m, decompress_n_m, prune_n_m
from sparse24.kernels.reference_product import (
    activate,
    apply_epilogue,
    matmul,
    split_bfloat16,
    split_sections,
)
from sparse24.kernels.reference_prune import (
    excess_groups,
    magnitude_rank,
    prune,
    top_mask,
    transposable_mask,
)
from sparse24.kernels.reference_sample import sample, uniform

__all__ = [
    "activate",
    "activate_compress",
    "activated",
    "apply_epilogue",
    "codes_to_metadata",
    "compress",
    "compress_n_m",
    "decompress",
    "decompress_n_m",
    "excess_groups",
    "like",
    "magnitude_rank",
    "masked_gradient",
    "matmul",
    "metadata_to_codes",
    "pack_codes",
    "pack_metadata",
    "prune",
    "prune_n_m",
    "quantise_rows",
    "sample",
    "split_bfloat16",
    "split_sections",
    "stored_mask",
    "to_dtype",
    "top_mask",
    "transposable_mask",
    "transpose",
    "uniform",
    "unpack_codes",
    "unpack_metadata",
]
