"""`./inv launch`: a job on bare-metal hosts, over the user's own ssh. Start with `launch`. See docs/bare-metal.md."""
