"""nki.language of the Beta 1 dialect: tensors, indices, loops, and functions of tiles that return tiles."""

from nki.regions import is_hbm, is_on_chip, is_psum, is_sbuf

from ..compiler import no_reorder
from ..indices import arange, mgrid
from ..loops import affine_range, sequential_range, static_range
from .creation import *  # noqa: F403 - the functions, as the module lists them
from .creation import __all__ as _creation
from .elementwise import *  # noqa: F403
from .elementwise import __all__ as _elementwise
from .memory import *  # noqa: F403
from .memory import __all__ as _memory
from .program import *  # noqa: F403
from .program import __all__ as _program
from .reductions import *  # noqa: F403
from .reductions import __all__ as _reductions
from .types import *  # noqa: F403
from .types import __all__ as _types

__all__ = [
    "affine_range", "arange", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "mgrid", "no_reorder", "sequential_range",
    "static_range", *_creation, *_elementwise, *_memory, *_program, *_reductions, *_types
]  # fmt: skip
