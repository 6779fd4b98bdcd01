"""What upstream broke for scripts that ran before, mended from outside of them: one small adaptation each.

They hook modules as the script imports them, so that a script without transformers never waits for it.
"""
