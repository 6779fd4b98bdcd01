"""./inv manifest: warnings and bad options, one line each."""

import re
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.kubernetes.jobs import request
from tooling.kubernetes.request import warnings
from tooling.kubernetes.trainer import TrainJob


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"node_cpus": 60}, ["--cpus 60 of the node's 60 leaves none for the kubelet"]),
        ({"node_memory": "128Gi"}, ["--memory 128Gi of the node's 128Gi leaves none for the kubelet"]),
        ({"memory": "4Gi"}, ["shared memory may take 3200 MiB of the pod's 4Gi"]),
        (
            {"command": ("train", "--output_dir=/output")},
            ["--output_dir is '/output', expected a folder"],
        ),
        ({"command": ("train",)}, ["--output_dir is ''"]),
        ({"command": ("train", "--output_dir", "/pvc")}, ["--output_dir is '/pvc', expected a folder"]),
        ({"command": ("train", "--output_dir=/pvc/")}, ["--output_dir is '/pvc/', expected a folder"]),
        ({"command": ("train", "--output_dir=/pvc/../x")}, ["--output_dir is '/pvc/../x', expected a folder"]),
        ({"command": ("train", "--output-dir=/x")}, ["--output_dir is '/x', expected a folder"]),
        ({"command": ("train", "--output_dir=/x", "--output_dir=/pvc/x/../y")}, []),
        ({"command": ("train", "/pvc/bert.yaml", "--bf16")}, []),
        ({"command": ("train", "/pvc/bert.yaml", "--output_dir", "/tmp/x")}, ["--output_dir is '/tmp/x'"]),
        ({"command": ("run", "x.py")}, []),
        (
            {"pvc": "", "command": ("train", "--output_dir", "/tmp/x")},
            ["without --pvc, weights and checkpoints are deleted with the pods"],
        ),
        ({"pvc": "", "command": ("run", "x.py")}, []),
    ],
)
def test_options_with_unwanted_effects_are_warnings(changes: dict[str, Any], expected: list[str]) -> None:
    found = warnings(request("trainjob", **changes))
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": "Bert"}, "--name is 'Bert'"),
    ({"name": "1bert"}, "starting with a letter"),
    ({"name": "b" * 60}, "expected at most"),
    ({"name": "a\n"}, r"--name is 'a\n', expected at most"),
    ({"namespace": "m.l"}, "--namespace is 'm.l'"),
    ({"image": "registry.example/stack:2.13"}, "expected HOST/NAME@sha256"),
    ({"image": "stack@sha256:" + "1" * 64}, "expected HOST/NAME@sha256"),
    ({"image": "registry.example/stack@sha256:12"}, "expected HOST/NAME@sha256"),
    ({"image": ""}, "found neither --image nor --image-lock"),
    ({"image_lock": "image.lock.json"}, "found both --image and --image-lock"),
    ({"nodes": 0}, "--nodes is 0"),
    ({"cpus": 0}, "--cpus is missing"),
    ({"memory": ""}, "--memory is missing"),
    ({"memory": "128GB"}, "--memory is '128GB', expected a quantity such as 128Gi"),
    ({"memory": "0Gi"}, "--memory is '0Gi'"),
    ({"memory": "2Gi"}, "--memory is 2Gi, but shared memory may take 3200 MiB"),
    ({"node_memory": "much"}, "--node-memory is 'much'"),
    ({"node_cpus": -1}, "--node-cpus is -1"),
    ({"max_restarts": -1}, "--max-restarts is -1"),
    ({"max_restarts": 300_000_000}, "--max-restarts is 300000000, expected 0 to 10000"),
    ({"ranks_per_node": "two"}, "--ranks-per-node is 'two'"),
    ({"ranks_per_node": "0"}, "--ranks-per-node is '0'"),
    ({"ranks_per_node": "²"}, "--ranks-per-node is '²'"),
    ({"memory": "\N{ARABIC-INDIC DIGIT THREE}Gi"}, "expected a quantity such as 128Gi"),
    ({"pvc": ""}, "'/pvc/output/bert' is a path on the claim, but --pvc is missing"),
    ({"pvc": "My_Claim"}, "--pvc is 'My_Claim'"),
    ({"pull_secret": "a/b"}, "--pull-secret is 'a/b'"),
    ({"node_selector": ("node-type",)}, "--node-selector is 'node-type', expected KEY=VALUE"),
    ({"node_selector": ("a b=c",)}, "--node-selector is 'a b=c'"),
    ({"node_selector": ("a/=c",)}, "--node-selector is 'a/=c'"),
    ({"node_selector": (f"{'a.' * 126}aa/b=c",)}, "--node-selector is 'a.a."),
    ({"node_selector": ("a\n=b", "a\n=c")}, r"--node-selector: a\n is given twice"),
    ({"queue": "Team"}, "--queue is 'Team'"),
    ({"scheduler_name": "a b"}, "--scheduler-name is 'a b'"),
    ({"env": ("NAME",)}, "--env 'NAME': expected NAME=VALUE"),
    ({"env": ("A-B=1",)}, "'A-B' is not a variable name"),
    ({"env": ("PET_NNODES=2",)}, "the launcher sets this variable"),
    ({"env": ("MASTER_ADDR=x",)}, "the launcher sets this variable"),
    ({"env": ("CPU_TRAIN_STACK_RANKS_PER_NODE=7",)}, "use --ranks-per-node"),
    ({"env": ("CPU_TRAIN_STACK_GRACE_SECONDS=9",)}, "use --grace-seconds"),
    ({"secret_env": ("CPU_TRAIN_STACK_GRACE_SECONDS=a/b",)}, "use --grace-seconds"),
    ({"env": ("A=1", "A=2")}, "--env and --secret-env: A is given twice"),
    ({"node_selector": ("a=b", "a=c")}, "--node-selector: a is given twice"),
    ({"secret_env": ("HF_TOKEN=hub",)}, "found 'hub', expected SECRET/KEY"),
    ({"secret_env": ("HF_TOKEN=Hub/token",)}, "--secret-env is 'Hub'"),
    ({"secret_env": ("HF_TOKEN=hub/.",)}, "found 'hub/.', expected SECRET/KEY"),
    ({"secret_env": ("HF_TOKEN=hub/..token",)}, "found 'hub/..token', expected SECRET/KEY"),
    ({"secret_env": (f"HF_TOKEN=hub/{'k' * 254}",)}, "expected SECRET/KEY"),
    ({"command": ()}, "no command"),
    ({"command": ("torchrun", "x.py")}, "the command begins with torchrun"),
    ({"command": ("",)}, "the command begins with '', expected train, run, bench or a program"),
    ({"command": ("--bf16",)}, "the command begins with '--bf16', expected train"),
]


@pytest.mark.parametrize(
    ("changes", "expected"), BAD, ids=[" ".join(f"{k}={v}" for k, v in c.items())[:60] for c, _ in BAD]
)
def test_a_bad_option_is_reported_in_one_line(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)) as caught:
        request("pytorchjob", **changes)
    assert "\n" not in str(caught.value)


def test_all_missing_options_are_in_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        TrainJob(command=())
    line = str(caught.value)
    assert "\n" not in line
    for problem in (
        "found neither --image nor --image-lock",
        "--cpus is missing",
        "--memory is missing",
        "no command",
    ):
        assert problem in line
    assert "--pvc" not in line


def test_all_bad_options_are_in_one_line() -> None:
    wrong = [changes for changes, _ in BAD if not changes.keys() & {"image_lock", "command", "pvc"}]
    several = {name: value for changes in wrong for name, value in changes.items()}
    with pytest.raises(UsageError) as caught:
        request("pytorchjob", **several)
    line = str(caught.value)
    assert "\n" not in line
    for name in several.keys() - {"image"}:
        assert f"--{name.replace('_', '-')}" in line
    assert "found neither --image nor --image-lock" in line


def test_a_mistake_that_two_checks_find_is_reported_once() -> None:
    with pytest.raises(UsageError) as caught:  # the length of the command depends on the number of ranks
        request("trainjob", ranks_per_node="0")
    assert str(caught.value).count("--ranks-per-node is '0'") == 1


def test_the_longest_names_are_allowed() -> None:
    key, domain = "." + "k" * 252, "a." * 126 + "a"
    longest = request("pytorchjob", node_selector=(f"{domain}/b=c",), secret_env=(f"A=hub/{key}",))
    assert (longest.node_labels, longest.secret_variables) == ({f"{domain}/b": "c"}, {"A": ("hub", key)})


def test_each_value_of_a_repeated_option_is_checked() -> None:
    with pytest.raises(UsageError) as caught:
        request("pytorchjob", env=("A-B=1", "NAME", "C=2", "RANK=3"))
    for problem in ("'A-B' is not a variable name", "--env 'NAME'", "--env RANK"):
        assert problem in str(caught.value)


def test_a_variable_has_one_source() -> None:
    with pytest.raises(UsageError, match="--env and --secret-env: A is given twice"):
        request("pytorchjob", env=("A=1",), secret_env=("A=hub/token",))


def test_an_mpijob_needs_a_number_of_ranks() -> None:
    with pytest.raises(UsageError, match="--ranks-per-node is 'auto', expected a number for an mpijob"):
        request("mpijob", ranks_per_node="auto")


def test_the_longest_pod_name_fits(tmp_path: Path) -> None:
    assert request("pytorchjob", name="b" * 54).name == "b" * 54
    with pytest.raises(UsageError, match="-worker-10"):
        request("pytorchjob", name="b" * 54, nodes=11)
    assert request("trainjob", name="b" * 48, nodes=4).name == "b" * 48
    with pytest.raises(UsageError, match=r"at most 48 .*-node-0-3-abcde"):
        request("trainjob", name="b" * 49, nodes=4)
