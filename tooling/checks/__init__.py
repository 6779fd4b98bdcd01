"""Checks for developers: the suite, conformance, sanitizers, soak, faults, an emulated machine.

Start with `suite` (`./inv test`); `in_image` is `./inv test --inside`. Each other module or package is a task of
`./inv dev`.
"""
