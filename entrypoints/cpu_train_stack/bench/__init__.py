"""`bench ...`: measure what limits a job's speed, as one rank.

Start with `arguments`, then `collectives` or `scaling`.
"""
