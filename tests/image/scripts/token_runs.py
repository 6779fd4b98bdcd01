"""A rank that trains several times, because imports take seconds: token_runs.py FILE FOLDER.

FILE: the arguments of each run, by its name. After a run, rank RANK writes FOLDER/NAME.RANK.json: what
many_runs.run returns, the run's result and its files of tokens.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, "/tests")
run: Any = importlib.import_module("many_runs").run

for name, argv in json.loads(Path(sys.argv[1]).read_text()).items():
    done = run(argv)
    dist.barrier()  # until rank 0 has written its result
    output = Path(argv[argv.index("--output_dir") + 1])
    tokens = output / "_tokens"
    done["result"] = json.loads((output / "result.json").read_text()) if done["code"] == 0 else None
    done["files"] = sorted(file.name for file in tokens.iterdir()) if tokens.exists() else None
    Path(sys.argv[2], f"{name}.{os.environ['RANK']}.json").write_text(json.dumps(done))
    dist.barrier()  # the next run replaces them
