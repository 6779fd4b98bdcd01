"""Checks for developers: the test suite, tests inside an image, conformance, sanitizers, soak. Start with `suite`."""
