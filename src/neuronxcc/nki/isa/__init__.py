"""nki.isa of the Beta 1 dialect: each instruction returns the tile that it computes.

Tiles that results lie in are made in SBUF, those of the Tensor Engine in PSUM. Every instruction goes through the
function of `nki.isa` of the same name, and is checked by it.
"""

from nki.isa import get_nc_version

from . import constants
from .compute import *  # noqa: F403 - the instructions, as the module lists them
from .compute import __all__ as _compute
from .constants import *  # noqa: F403
from .constants import __all__ as _constants
from .movement import *  # noqa: F403
from .movement import __all__ as _movement
from .selection import *  # noqa: F403
from .selection import __all__ as _selection

__all__ = ["constants", "get_nc_version", *_compute, *_constants, *_movement, *_selection]
