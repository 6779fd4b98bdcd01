"""`./inv launch`: a job on bare-metal hosts, over the user's own ssh. See docs/bare-metal.md."""
