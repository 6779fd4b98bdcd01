"""Several ranks in one container, through torchrun's agent: `entrypoint launch`.

Start with `agent`.
"""
