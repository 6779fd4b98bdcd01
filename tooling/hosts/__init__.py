"""`./inv launch`: a job on bare-metal hosts, over the user's own ssh. docs/bare-metal.md is the manual.

Start with `launch`.
"""
