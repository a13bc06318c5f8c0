"""The kinds of tiles of a block-hybrid matrix; ``formats/hybrid_tiles.py`` says what each holds."""

EMPTY, DENSE, TWO_FOUR, BITMAP, SCATTERED = range(5)
NAMES = ("empty", "dense", "2:4", "bitmap", "scattered")
