"""Registers the Hypothesis profile "hostile": ten thousand new examples for each test, instead of some hundred."""

from hypothesis import HealthCheck, settings

HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("hostile", deadline=None, max_examples=10_000, suppress_health_check=HEALTH)
