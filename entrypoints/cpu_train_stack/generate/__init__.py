"""`generate`: what a language model answers, to see what a training has taught it. Start with `command`."""
