"""What an adaptation of a library is, how it changes a library, and the private names that the run side uses.

An adaptation hooks a module when the script imports it, so that scripts do not wait for libraries that they do not
use. The adaptations are in `speed` and `compat`, their table is `catalogue`.
"""
