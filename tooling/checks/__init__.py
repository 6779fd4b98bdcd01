"""Checks for developers: the suite, tests inside an image, conformance, sanitizers, soak. Start with `suite`."""
