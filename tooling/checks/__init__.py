"""The developers' own checks: the test suite, tests inside an image, conformance, sanitizers, endurance.

Start with `suite`.
"""
