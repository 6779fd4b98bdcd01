"""Adapt older scripts to today's libraries, without a change in the script: one small adaptation per break.

An adaptation hooks a module when the script imports it, so that scripts do not wait for libraries that they do not
use. Start with `catalogue`.
"""
