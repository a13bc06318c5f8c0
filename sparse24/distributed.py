"""Sums of compressed arrays over several processes, GPUs or threads.

>>> import numpy as np, sparse24 as s24
>>> from sparse24.distributed import all_reduce, in_threads
>>> (comm,) = in_threads(1)    # or from_torch(), or from_nccl(comm)
>>> weight = s24.random((64, 128), rng=0)
>>> gradient = s24.compress(np.ones((64, 128), np.float32), like=weight)
>>> all_reduce(gradient, comm).shape
(64, 128)

What moves the data is a `Communicator`: a group of torch.distributed, one of NCCL, threads of one
process, or a few lines around another library.  For torch's own data-parallel training there is
`sparse24.torch.reduce_packed`.
"""

from sparse24._distributed.communicator import Communicator
from sparse24._distributed.nccl import from_nccl
from sparse24._distributed.reduce import all_reduce
from sparse24._distributed.scatter import reduce_scatter, row_block
from sparse24._distributed.threads import in_threads
from sparse24._torch.communicator import from_torch

__all__ = [
    "Communicator",
    "all_reduce",
    "from_nccl",
    "from_torch",
    "in_threads",
    "reduce_scatter",
    "row_block",
]
