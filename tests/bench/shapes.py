"""The shapes that the product benchmarks run, and where they come from."""

# (m, k, n): rows of the sparse operand, inner size, tokens.
LARGE = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 8192),
    (14336, 4096, 4096),  # 8B model, MLP up
    (4096, 14336, 4096),  # 8B model, MLP down
    (14336, 4096, 16384),
    (4096, 14336, 16384),
    (28672, 8192, 4096),  # 70B model, MLP up
    (8192, 28672, 4096),  # 70B model, MLP down
    (10240, 8192, 8192),  # 70B model, fused query, key, value
    (5120, 16384, 4096),
)
OTHER = (
    (6144, 4096, 2048),  # 8B model, fused query, key, value
    (4096, 4096, 512),
    (14336, 4096, 512),
    (4096, 14336, 512),
    (3072, 768, 16384),  # BERT base, MLP up
    (768, 3072, 16384),  # BERT base, MLP down
)
MIDDLE_TOKENS = tuple(
    (m, k, n) for m, k in ((4096, 4096), (14336, 4096), (4096, 14336)) for n in (1024, 2048)
)
EIGHT_BIT = LARGE[:2] + LARGE[3:6]
FEW_TOKENS_WEIGHTS = ((14336, 4096), (4096, 14336), (28672, 8192), (8192, 8192))
SMALL_WEIGHTS = ((2048, 2048), (1024, 4096), (3072, 3072), (4096, 4096), (1536, 6144))
FEW_TOKENS = (1, 8, 16, 32, 64, 128, 256)
