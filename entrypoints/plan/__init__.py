"""What a rank gets: cores, threads, oneCCL's workers, preloaded libraries, and why. Pure and torch-free.

Start with `planner`; `command` is `entrypoint plan`.
"""
