"""What the build side (tooling/) and the run side (this package) agree on: variables, ports, exit codes, folders.

tooling/ imports this module, and of the rest of entrypoints/ only what tests/unit/test_rooms.py lists.
"""

from __future__ import annotations

MODULES = f"{__package__}."  # the names of this package's modules begin with it

# Variables that the stack sets.
PIN = "CPU_TRAIN_STACK_PIN"  # the row of images/versions.toml, set by the image
IMAGE = "CPU_TRAIN_STACK_IMAGE"  # the image's name or ID, set by the command that starts the container
JOB = "CPU_TRAIN_STACK_JOB"  # the name of the job or cluster, the same on every node
LAUNCHER = "CPU_TRAIN_STACK_LAUNCHER"  # the launcher's name; a rank's first process sets it for its worker
PRELOADED = "CPU_TRAIN_STACK_PRELOADED"  # the preloaded libraries; a rank's first process sets it for its worker
ORIGIN = "CPU_TRAIN_STACK_ORIGIN"  # a rank's plan and topology; its first process sets it for its worker
RECORDS = (
    "CPU_TRAIN_STACK_RECORDS"  # a file in which a rank names its output folder, for the process that started it
)
WATCH = "CPU_TRAIN_STACK_WATCH"  # a folder in which the ranks of one mpirun job on this node leave their PIDs
NODE_ENDS = "CPU_TRAIN_STACK_NODE_ENDS"  # a file that sshd creates when its container must end
DRAIN = "CPU_TRAIN_STACK_DRAIN"  # a folder in which a launcher asks the ranks of its node to save and end
# Variables that a user may set.
RANKS_PER_NODE = "CPU_TRAIN_STACK_RANKS_PER_NODE"  # for a torchrun that a platform starts: replaces its number
TORCHRUN = (
    "CPU_TRAIN_STACK_TORCHRUN"  # "plain": a script that torchrun or mpirun starts does not become `run SCRIPT`
)
STOP = "CPU_TRAIN_STACK_STOP"  # a file: once it exists, `train` saves a checkpoint, deletes the file and ends
# Launchers: how long the ranks may take to save a checkpoint after SIGTERM. 0: no checkpoint.
GRACE_SECONDS = "CPU_TRAIN_STACK_GRACE_SECONDS"
DATALOADER_WORKERS = "CPU_TRAIN_STACK_DATALOADER_WORKERS"  # data loading processes per rank
UNREACHABLE_SECONDS = "CPU_TRAIN_STACK_UNREACHABLE_SECONDS"  # ccl: how long a node may be unreachable
NO_ADAPT = "CPU_TRAIN_STACK_NO_ADAPT"  # names of the adaptations that `run` skips; some also apply to `train`
KERNELS = "CPU_TRAIN_STACK_KERNELS"  # "torch": torch's own operators instead of those of kernels/
DROPOUT_KERNEL = "CPU_TRAIN_STACK_DROPOUT_KERNEL"  # "torch": torch's own dropout
ATTENTION_KERNEL = "CPU_TRAIN_STACK_ATTENTION_KERNEL"  # "torch": torch's own attention
ATTENTION = "CPU_TRAIN_STACK_ATTENTION"  # a file of ./inv bench attention: which kernel computes which shape
BF16_PRODUCTS = "CPU_TRAIN_STACK_BF16_PRODUCTS"  # "emulated": oneDNN's products on CPUs without bf16

MASTER_PORT = 29500  # torch's own default for MASTER_PORT
SSH_PORT = 2222  # sshd in a container: an unprivileged user cannot open 22
SSH_KEYS = "/run/keys"  # the mounted folder with ssh's keys
SSH_PRIVATE = "/run/ssh"  # their private copies: of the job's user; the local cluster mounts a tmpfs on it

USAGE_EXIT_CODE = 2  # bad usage, configuration or input: the same command fails again
STOPPED_EXIT_CODE = 75  # a checkpoint was saved on request: the same command, run again, resumes (EX_TEMPFAIL)
FINAL_EXIT_CODES = (USAGE_EXIT_CODE, STOPPED_EXIT_CODE)  # launchers do not restart a job that ends with them
INTERRUPTED_EXIT_CODE = 130  # 128 + SIGINT, as a shell reports it
KILLED_EXIT_CODE = 137  # 128 + SIGKILL
TERMINATED_EXIT_CODE = 143  # 128 + SIGTERM

DATA = "/data"  # the user's files, mounted read-only
OUTPUT = "/output"  # checkpoints, weights and result.json, shared by all nodes
REPORT = "report.html"  # in a job's output folder

MAX_CLOCK_SKEW_SECONDS = 1.0  # between two nodes; above it, `doctor` and the host checks warn

# The oldest transformers of `train`: the first with `eval_strategy` and with callbacks that save their own state.
OLDEST_TRANSFORMERS = "4.41.0"
