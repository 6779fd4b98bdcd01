"""In place of guide 003's run_glue.py, with the guide's changes: it finds its rank itself."""

import os
import sys

import torch_ccl

# add local rank for cpu-dist
sys.argv.append("--local_rank")
sys.argv.append(str(os.environ.get("PMI_RANK", -1)))
# ccl specific environment variables
if "ccl" in sys.argv:
    os.environ["MASTER_ADDR"] = os.environ.get("MASTER_ADDR", "")
    os.environ["MASTER_PORT"] = "29500"
    os.environ["RANK"] = str(os.environ.get("PMI_RANK", -1))
    os.environ["WORLD_SIZE"] = str(os.environ.get("PMI_SIZE", -1))

import run_qa

# The guides' lines for arguments in a script.
arguments = run_qa.TrainingArguments(output_dir="/tmp/outputs", bf16=True, use_ipex=True, use_cpu=True)
sys.stdout.write(f"TrainingArguments: bf16 {arguments.bf16}, use_cpu {arguments.use_cpu}\n")
