"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# How long an example takes, or finding one, says only how busy the machine is. The examples are the same each time: a
# change is refused for what it broke, not for what luck found elsewhere.
_SAME = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("groundstate", derandomize=True, **_SAME)
# To look for more: HYPOTHESIS_PROFILE=explore make unit. What is found becomes a test of its own.
settings.register_profile("explore", max_examples=2000, **_SAME)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "groundstate"))
