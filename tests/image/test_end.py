"""How a finished rank exits: its threads and exit handlers run, and the interpreter is not finalized."""

import subprocess
from pathlib import Path

from cpu_train_stack import contract
from tests import containers
from tests.image.train_runs import ONE_THREAD, line, mounts

LEFTOVERS = """
import atexit, sys, threading, time
class Global:
    def __del__(self):
        print("taken down", file=sys.__stderr__, flush=True)
kept = [Global()]
sys.modules["kept"] = kept
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.5), print("thread"))).start()
print("script", end=" ")
"""


def test_threads_and_exit_handlers_run_but_the_interpreter_is_not_finalized(
    run_in_image: containers.RunInImage, tmp_path: Path
) -> None:
    """Its end would kill a thread of gloo that frees tensors then, and with it the process, by SIGABRT."""
    (tmp_path / "leftovers.py").write_text(LEFTOVERS)
    tmp_path.chmod(0o755)
    done = run_in_image("run", "/scripts/leftovers.py", docker_args=["--volume", f"{tmp_path}:/scripts:ro"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "script thread\nat exit\n"
    assert "taken down" not in done.stderr


def test_a_single_rank_saves_its_work_after_sigterm_and_resumes(
    image: str, train_data: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    flags = line("/output/long", max_steps=100_000, save_strategy="steps", save_steps=100_000, eval_strategy="no")
    name = containers.unique_name()
    variables = [f"--env={key}={value}" for key, value in ONE_THREAD.items()]
    command = [
        "docker",
        "run",
        f"--name={name}",
        *variables,
        *mounts(train_data, tmp_path),
        image,
        "train",
        *flags,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        try:
            assert training.stderr is not None
            until = next(text for text in training.stderr if "loss" in text)
            subprocess.run(["docker", "stop", name], check=True, capture_output=True, timeout=60)
            said = until + training.stderr.read()
        finally:
            subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True, timeout=60)
    assert training.returncode == contract.STOPPED_EXIT_CODE, said
    (checkpoint,) = (tmp_path / "long").glob("checkpoint-*")
    step = int(checkpoint.name.partition("-")[2])
    flags[flags.index("--max_steps") + 1] = str(step + 1)
    flags += ["--resume_from_checkpoint", "true"]
    again = containers.run(image, "train", *flags, env=ONE_THREAD, docker_args=mounts(train_data, tmp_path))
    assert again.returncode == 0, again.stderr
    assert f"training: {step + 1} steps from step {step}, ranks: 1" in again.stderr
