"""Arrays of every format, for tests."""

import sparse24 as s24

MAKE = {
    "2:4": lambda w: s24.compress(w, on_excess="prune"),
    "4:8": lambda w: s24.compress(w, pattern=(4, 8), on_excess="prune"),
    "windows": lambda w: s24.compress(w, pattern=(6, 8), on_excess="prune").windows(),
    "hybrid": s24.hybrid,
}
