"""The plan of a rank: cores, threads, oneCCL's workers, preloaded libraries, and the reasons. Pure and torch-free.

Start with `planner`; `command` is `entrypoint plan`.
"""
