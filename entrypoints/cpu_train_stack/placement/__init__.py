"""Which rank this process is: the variables of one launcher as a DistributedEnvironment. Torch-free.

Start with `detect`; `launchers` lists the variables of each launcher.
"""
