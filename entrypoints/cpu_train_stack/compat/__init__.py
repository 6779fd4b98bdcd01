"""Adaptations of older scripts to today's libraries and to CPUs, without a change in the script.

`catalogue` lists them.
"""
