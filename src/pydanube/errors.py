"""Every error of the one table, for programs: `from pydanube.errors import TopicNotFound`."""

from __future__ import annotations

from pydanube.base.errors import *  # noqa: F403
from pydanube.base.errors import __all__ as __all__
