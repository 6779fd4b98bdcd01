"""The contents of the default pin's image: what it has, what it lacks, and that the trimmed environment works."""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests import containers
from tests.containers import RunInImage, works
from tooling.engine import docker
from tooling.pins import parse
from tooling.wheels import locks

PIN = parse.load().pin()
SIZE_LIMIT_BYTES = 1.9e9

# Libraries of network hardware and of accelerators: they come with the cluster's drivers, if at all, and only a
# provider that was chosen by name opens them.
OF_THE_CLUSTER = {
    "libefa.so.1",
    "libibverbs.so.1",
    "libnuma.so.1",
    "libpsm2.so.2",
    "librdmacm.so.1",
    "libucp.so.0",
    "libze_loader.so.1",
}


def inspect(reference: str) -> dict[str, object]:
    argv = ["docker", "image", "inspect", "--format", "{{json .}}", reference]
    document: dict[str, object] = json.loads(
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    )
    return document


def test_the_job_runs_as_trainer_behind_an_init(run_in_image: RunInImage) -> None:
    shown = works(run_in_image("sh", "-c", "id -u; id -g; id -un; cat /proc/1/comm; pwd"))
    assert shown.split() == ["1000", "1000", "trainer", "tini", "/workspace"]


def test_the_entrypoint_and_the_pin_are_set(image: str) -> None:
    config = inspect(image)["Config"]
    assert isinstance(config, dict)
    assert config["Entrypoint"] == ["entrypoint"]
    assert config["User"] == "1000:1000"
    assert f"CPU_TRAIN_STACK_PIN={PIN.name}" in config["Env"]


def test_the_jobs_user_can_write_where_a_job_writes_and_nowhere_else(run_in_image: RunInImage) -> None:
    script = (
        'for folder in /workspace /output /tmp "$HOME" /data /opt/venv /opt/cpu-train-stack /usr/local/bin; do '
    )
    script += 'if [ -w "$folder" ]; then echo "$folder"; fi; done'
    assert works(run_in_image("sh", "-c", script)).split() == ["/workspace", "/output", "/tmp", "/home/trainer"]


TOOLS = ("cc", "gcc", "c++", "g++", "clang", "ld", "as", "make", "cmake", "pip", "pip3")


@pytest.fixture(scope="module")
def tools(image: str) -> list[str]:
    """The paths of TOOLS, and of sh, in the image."""
    script = f"for name in {' '.join(TOOLS)} sh; do command -v $name; done; true"
    return works(containers.run(image, "sh", "-c", script)).splitlines()


@pytest.mark.parametrize("name", TOOLS)
def test_no_compiler_and_no_installer_is_in_the_image(tools: list[str], name: str) -> None:
    # Of pip, the image has one line that says what to use instead (tests/image/test_guides.py).
    found = [Path(path).name for path in tools if Path(path).parent != Path("/opt/cpu-train-stack/absent")]
    assert "sh" in found
    assert name not in found


def test_nothing_is_left_of_building_and_installing(run_in_image: RunInImage) -> None:
    as_root = ["--user", "0", "--entrypoint", ""]
    endings = ["*.h", "*.hpp", "*.pxd", "*.a", "*.whl", "*.deb"]
    names = " -o ".join(f"-name '{ending}'" for ending in endings)
    files = works(run_in_image("sh", "-c", f"find / -xdev -type f \\( {names} \\)", docker_args=as_root))
    assert files.splitlines() == []
    # apt's empty folders and lock files stay where the base has them.
    script = """
        find /usr/include /tmp /var/tmp -mindepth 1
        find /var/lib/apt/lists /var/cache/apt /var/log -type f -size +0
        ls -d /root/.cache /home/trainer/.cache 2>/dev/null || true
    """
    assert works(run_in_image("sh", "-c", script, docker_args=as_root)) == ""


def test_the_image_is_smaller_than_the_limit(image: str) -> None:
    assert docker.read_image(image).size_bytes < SIZE_LIMIT_BYTES


def test_labels_lock_and_installed_versions_are_the_same(image: str, run_in_image: RunInImage) -> None:
    labels = docker.read_image(image).labels
    script = """
        import json, re
        from importlib.metadata import distributions
        print(json.dumps({re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in distributions()}))
    """
    installed = json.loads(works(run_in_image("python", "-c", textwrap.dedent(script))))
    locked = {name: wheel.version for name, wheel in locks.read(PIN).items()}
    # The ccl backend is built with the image, from a separate lock, for the torch of the pin.
    built = {"oneccl-bind-pt": locked["torch"].partition("+")[0]}
    assert installed == {**locked, **built}
    assert json.loads(labels["cpu-train-stack.versions"]) == installed
    assert labels["cpu-train-stack.oneccl"] == locks.read_build(PIN)["oneccl-devel"].version
    assert labels["cpu-train-stack.pin"] == PIN.name
    assert labels["cpu-train-stack.python"] == PIN.python
    assert works(run_in_image("python", "--version")).startswith(f"Python {PIN.python}.")
    for name in ("title", "version", "revision", "created", "licenses", "base.name", "base.digest"):
        assert labels[f"org.opencontainers.image.{name}"]


def test_no_credential_and_no_setting_of_the_host_is_in_the_image(image: str) -> None:
    argv = ["docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", image]
    history = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    config = inspect(image)["Config"]
    assert isinstance(config, dict)
    shown = "\n".join([history, *config["Env"]]).lower()
    for word in ("pip_", "_proxy", "token", "password", "secret", "credential"):
        assert word not in shown, f"{word!r} is in the image's history or configuration"
    everything = history + json.dumps(inspect(image))
    of_pip = {value for name, value in os.environ.items() if name.startswith("PIP_") and len(value) > 4}
    assert [value for value in of_pip if value in everything] == []


def test_torch_is_the_cpu_build_of_the_pin(run_in_image: RunInImage) -> None:
    script = (
        "import torch; print(torch.__version__, torch.cuda.is_available(), torch.backends.mkldnn.is_available())"
    )
    assert works(run_in_image("python", "-c", script)).split() == [PIN.packages["torch"], "False", "True"]


IMPORTS = """
import accelerate, datasets, pandas, psutil, pyarrow.parquet, safetensors.torch, scipy.stats, sentencepiece
import sklearn, tensorboard, tokenizers, torch, torchmetrics, transformers
from google.protobuf import descriptor
from sklearn.metrics import f1_score
from torch.utils.tensorboard import SummaryWriter
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, Trainer
table = pyarrow.table({"a": [1, 2]})
pyarrow.parquet.write_table(table, "/tmp/a.parquet")
assert datasets.load_dataset("parquet", data_files="/tmp/a.parquet", split="train")["a"][:] == [1, 2]
assert torchmetrics.functional.accuracy(torch.tensor([1, 0]), torch.tensor([1, 1]), task="binary") == 0.5
assert f1_score([1, 0], [1, 0]) == 1.0
SummaryWriter("/tmp/board").add_scalar("loss", 1.0, 1)
print("fine")
"""


def test_every_library_that_a_job_needs_works_after_the_trimming(run_in_image: RunInImage) -> None:
    assert works(run_in_image("python", "-c", IMPORTS, env={"HF_HUB_OFFLINE": "1"})).endswith("fine\n")


def test_every_library_of_intels_packages_finds_what_it_is_linked_to(run_in_image: RunInImage) -> None:
    script = """
        for file in $(find /opt/venv/lib /opt/venv/bin -path '*/python3*' -prune -o -type f -print); do
            [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
            echo "is $file"
            ldd "$file" 2>&1 | awk '/not found/ { print "lacks " $1 }'
        done
    """
    # mpirun and torch find these folders in their own ways; ldd needs the variable.
    result = run_in_image("sh", "-c", script, env={"LD_LIBRARY_PATH": "/opt/venv/lib"})
    lines = [line.split() for line in works(result).splitlines()]
    examined = [Path(words[1]).name for words in lines if words[0] == "is"]
    assert {"libiomp5.so", "libmpi.so.12.0.0", "libtcp-fi.so", "hydra_pmi_proxy"} <= set(examined)
    assert {words[1] for words in lines if words[0] == "lacks"} - OF_THE_CLUSTER == set()


@pytest.mark.parametrize("name", ["libtcmalloc_minimal.so.4", "/opt/venv/lib/libiomp5.so"])
def test_a_library_that_is_preloaded_can_be_loaded(run_in_image: RunInImage, name: str) -> None:
    script = f"import ctypes; ctypes.CDLL({name!r}); print(open('/proc/self/maps').read())"
    assert Path(name).name.split(".so")[0] in works(run_in_image("python", "-c", script))


def test_mpirun_starts_two_ranks_on_one_node(run_in_image: RunInImage) -> None:
    assert "Intel(R) MPI Library" in works(run_in_image("mpirun", "--version"))
    names = works(run_in_image("mpirun", "-n", "2", "hostname", docker_args=["--hostname", "lonely"])).split()
    assert names == ["lonely", "lonely"]


# The constants are MPICH's ABI, which Intel MPI keeps: MPI_COMM_WORLD, MPI_INT, MPI_SUM.
MPI_ALLREDUCE = """
import ctypes
mpi = ctypes.CDLL("/opt/venv/lib/libmpi.so.12")
assert mpi.MPI_Init(None, None) == 0
rank, total = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(0x44000000, ctypes.byref(rank))
mine = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, 0x4C000405, 0x58000003, 0x44000000)
print(f"sum={total.value};", end="")
mpi.MPI_Finalize()
"""


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="shared-memory"),
        pytest.param({"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "LD_LIBRARY_PATH": "/opt/venv/lib"}, id="tcp"),
    ],
)
def test_two_mpi_ranks_reduce_a_number(run_in_image: RunInImage, env: dict[str, str]) -> None:
    shown = works(run_in_image("mpirun", "-n", "2", "python", "-c", MPI_ALLREDUCE, env=env))
    assert shown.count("sum=3;") == 2


GLOO_ALLREDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor([dist.get_rank() + 1.0], dtype=torch.bfloat16)
dist.all_reduce(number)
print(f"sum={number.item()};", end="")
dist.destroy_process_group()
"""


def test_two_gloo_ranks_reduce_a_number(run_in_image: RunInImage) -> None:
    shown = works(run_in_image("torchrun", "--nproc-per-node", "2", "--no-python", "python", "-c", GLOO_ALLREDUCE))
    assert shown.count("sum=3.0;") == 2


def test_bytecode_exists_is_used_and_is_never_written(run_in_image: RunInImage) -> None:
    # As root, who could write bytecode: -v prints where the code of each module comes from, and what is written.
    script = "import torch, transformers, cpu_train_stack.cli.errors"
    result = run_in_image("python", "-v", "-c", script, docker_args=["--user", "0"])
    works(result)
    loaded = [line for line in result.stderr.splitlines() if line.startswith("# code object from")]
    assert len(loaded) > 500
    assert [line for line in loaded if ".pyc" not in line] == []
    assert "# wrote" not in result.stderr
    assert any("/torch/__pycache__/__init__.cpython-311.pyc" in line for line in loaded)
    assert any("/cpu_train_stack/cli/__pycache__/errors." in line for line in loaded)


def test_bytecode_does_not_depend_on_time_stamps(run_in_image: RunInImage) -> None:
    # PEP 552: the flags are the second word; 1 is by hash, unchecked.
    script = """
        import pathlib, struct
        paths = list(pathlib.Path("/opt").rglob("*.pyc"))
        print(len(paths), [str(path) for path in paths if struct.unpack("<4xI", path.open("rb").read(8)) != (1,)])
    """
    number, _, stamped = works(run_in_image("python", "-c", textwrap.dedent(script))).partition(" ")
    assert int(number) > 5000
    assert stamped == "[]\n", "these contain the time of the build"


@pytest.mark.parametrize(
    "docker_args",
    [
        pytest.param(["--read-only", "--tmpfs", "/tmp"], id="read-only"),
        pytest.param(["--user", "12345"], id="any-user"),
        pytest.param(["--user", "12345:0", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"], id="strict"),
    ],
)
def test_torch_works_where_a_cluster_allows_little(run_in_image: RunInImage, docker_args: list[str]) -> None:
    script = (
        "import torch, transformers; print((torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16()).sum())"
    )
    assert "262144" in works(run_in_image("python", "-c", script, docker_args=docker_args))
