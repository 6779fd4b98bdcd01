"""`./inv launch`: a job on bare-metal hosts, over ssh. Start with `launch`; docs/bare-metal.md is for users."""
