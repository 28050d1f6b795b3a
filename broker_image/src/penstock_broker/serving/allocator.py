"""What a broker asks of the C library's allocator (decision 94).

glibc makes up to eight arenas per core, and memory that is freed in one is not given back while a
neighbour in it is used. Messages are freed by other threads than they were made by, so each arena
keeps much that nobody uses.
"""

import ctypes
import os
from typing import Final

_M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""
_ARENAS: Final = 2


def limit_arenas() -> None:
    """Call it before the first thread starts. MALLOC_ARENA_MAX has precedence; a C library without
    arenas has nothing to limit."""
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
