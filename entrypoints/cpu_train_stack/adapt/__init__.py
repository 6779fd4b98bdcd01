"""Adapt scripts to today's libraries and to CPUs, without a change in the script: small adaptations, one by one.

An adaptation hooks a module when the script imports it, so that scripts do not wait for libraries that they do not
use. Start with `catalogue`.
"""
