"""Settings of the property tests."""

from hypothesis import HealthCheck, settings

# On a busy machine, the deadline and this check blame the input of a test (as in tooling/checks/in_image.py).
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
