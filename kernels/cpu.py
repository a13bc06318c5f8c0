"""The CPU backend in one place: every entry point that higher layers call."""

from sparse24.kernels.cpu_across import matmul_across
from sparse24.kernels.cpu_activate import activate_compress
from sparse24.kernels.cpu_batch import beside
from sparse24.kernels.cpu_bricks import dequantise, pack_bricks, unpack_bricks
from sparse24.kernels.cpu_bricks import fit as bricks_fit
from sparse24.kernels.cpu_compress import at_places, compress, decompress, like, prune
from sparse24.kernels.cpu_deals import EveryDeal
from sparse24.kernels.cpu_exchanges import Exchanges
from sparse24.kernels.cpu_expanded import add_rows
from sparse24.kernels.cpu_few_bricks import bricks_pay, multiply_bricks
from sparse24.kernels.cpu_matmul import choose, decompress_matmul, dense_matmul, is_small, matmul
from sparse24.kernels.cpu_n_m import compress_n_m, decompress_n_m, mask_n_m, prune_n_m
from sparse24.kernels.cpu_n_m_across import Across as AcrossOfNM
from sparse24.kernels.cpu_n_m_few import FewColumns, masks_of
from sparse24.kernels.cpu_n_m_few import pays as few_columns_pay
from sparse24.kernels.cpu_n_m_matmul import many_columns, matmul_n_m
from sparse24.kernels.cpu_n_m_rows import FewRows
from sparse24.kernels.cpu_n_m_rows import pays as few_rows_pay
from sparse24.kernels.cpu_quantise import quantise
from sparse24.kernels.cpu_transposable import transposable_mask
from sparse24.kernels.cpu_turn import in_c_order

# Names of the products, as `algorithm` takes them; "dense" is "cpu_dense".
ALGORITHMS = ("auto", "cpu_sparse", "cpu_dense", "dense")

__all__ = [
    "ALGORITHMS",
    "AcrossOfNM",
    "EveryDeal",
    "Exchanges",
    "FewColumns",
    "FewRows",
    "activate_compress",
    "add_rows",
    "at_places",
    "beside",
    "bricks_fit",
    "bricks_pay",
    "choose",
    "compress",
    "compress_n_m",
    "decompress",
    "decompress_matmul",
    "decompress_n_m",
    "dense_matmul",
    "dequantise",
    "few_columns_pay",
    "few_rows_pay",
    "in_c_order",
    "is_small",
    "like",
    "many_columns",
    "mask_n_m",
    "masks_of",
    "matmul",
    "matmul_across",
    "matmul_n_m",
    "multiply_bricks",
    "pack_bricks",
    "prune",
    "prune_n_m",
    "quantise",
    "transposable_mask",
    "unpack_bricks",
]
