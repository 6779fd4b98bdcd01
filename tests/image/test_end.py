"""How a finished rank exits: its threads and exit handlers run, and the interpreter is not finalized."""

from pathlib import Path

from tests import containers

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
