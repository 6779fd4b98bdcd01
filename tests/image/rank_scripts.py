"""Scripts that ranks run in a container, and how to read their output."""

import json
import subprocess
from typing import Any

SEE = """
import json, os, sys, __main__
import torch, torch.distributed as dist
maps = open("/proc/self/maps").read()
def child(name):
    import subprocess
    return subprocess.run(["sh", "-c", f"echo $" + name], capture_output=True, text=True).stdout.strip()
had = dist.is_initialized()
dist.init_process_group("gloo")
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(json.dumps({
    "argv": sys.argv, "name": __name__, "main": __main__.__dict__ is globals(), "path": sys.path[0], "had": had,
    "rank": dist.get_rank(), "world_size": dist.get_world_size(), "total": total.tolist(),
    "backend": dist.get_backend(), "cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads(),
    "tcmalloc": "libtcmalloc" in maps, "iomp": "libiomp5" in maps, "child_preload": child("LD_PRELOAD"),
    "environment": {k: os.environ.get(k) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")},
    "bars": os.environ.get("TQDM_MININTERVAL"),
}) + "\\n", end="", flush=True)
for _ in range(int(os.environ.get("ROWS", 0))): print("one line of one rank")
dist.destroy_process_group()
"""

FAIL = """
import os, signal, sys, time
import torch, torch.distributed as dist
how, who = sys.argv[1], int(sys.argv[2])
for step in range(100000):
    dist.all_reduce(torch.ones(10))
    time.sleep(0.01)
    if step == 20:
        open(f"/tmp/running-{dist.get_rank()}", "w").close()
        if dist.get_rank() == who:
            if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
            if how == "exit": sys.exit(3)
            if how == "hang":
                import atexit, threading
                atexit.register(time.sleep, 1000)
                threading.Thread(target=time.sleep, args=(1000,)).start()
                raise LookupError("broken on purpose")
"""

AGREE = """
import torch.distributed as dist
from cpu_train_stack.group.create import agree
agree(None)
for messages in (["no data"] * 2, [None, "no data"], ["no data", "no model"]):
    try:
        agree(messages[dist.get_rank()])
    except SystemExit as end:
        code = end.code
        print(f"ended with {code}", flush=True)
    dist.barrier()
raise SystemExit(code)
"""

THREADS = """
import json, os
import torch
torch.ones(700, 700) @ torch.ones(700, 700)
cores = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
print(json.dumps({"rank": 0, "cores": sorted(set().union(*cores))}))
"""

SCRIPTS = {
    "see.py": SEE,
    "fail.py": FAIL,
    "agree.py": AGREE,
    "threads.py": THREADS,
    "broken.py": "def deep():\n    1 / 0\ndeep()\n",
}


def seen(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What SEE printed on each rank, by rank."""
    assert done.returncode == 0, done
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: int(line["rank"]))


def usage_line(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert done.returncode == code, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line
