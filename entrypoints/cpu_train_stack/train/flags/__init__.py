"""The trainer's command line.

Start with `arguments`.
"""
