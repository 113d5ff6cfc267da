"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes, or finding one, says only how busy the machine is.
settings.register_profile("groundstate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("groundstate")
