"""What each rank records about its steps, in OUTPUT/_records/rank-00000.jsonl, and what follows from it.

Start with `record`, the lines of a file. `writer` writes them while the job runs, `job` reads the files of all
ranks, and `stragglers` names the slowest rank and the likely cause. Torch-free.
"""
