"""Settings of the whole suite: property tests repeat exactly in CI, and explore elsewhere."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["servers.fixtures"]

settings.register_profile("explore", deadline=None, print_blob=True)
settings.register_profile("repeat", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("repeat" if os.environ.get("CI") else "explore")
