"""The trainer inside the image: bad input, bad flags and configuration files, and warnings before training."""

import textwrap
from pathlib import Path

import pytest

from tests import containers
from tests.image.train_runs import Runs, line, mounts, run_alone
from tooling.basis.paths import ROOT

# The runs of one rank, and the folder that they wrote to.
Alone = tuple[Runs, Path]

BAD: dict[str, tuple[dict[str, object], str]] = {
    "missing file": ({"train_file": "/data/none.csv"}, "does not exist: check the path and the mount"),
    "protocol without its package": ({"train_file": "s3://bucket/x.csv"}, "./inv build --with s3fs"),
    "server that does not answer": ({"train_file": "http://127.0.0.1:9/x.csv"}, "check the address, the network"),
    "file of another user": ({"train_file": "/data/closed.csv"}, "cannot be read by user 1000"),
    "no label column": ({"train_file": "/data/no-label.csv"}, "expected 'label'"),
    "empty file": ({"train_file": "/data/empty.csv"}, "is empty"),
    "broken json": ({"train_file": "/data/broken.json"}, "line 2 column 11: invalid JSON"),
    "ragged csv": ({"validation_file": "/data/ragged.csv"}, "line 3: found 3 columns, expected 2"),
    "broken parquet": ({"train_file": "/data/broken.parquet"}, "invalid parquet"),
    "row without text": ({"train_file": "/data/no-text.csv"}, "first in row 2"),
    "wrong type": ({"train_file": "/data/numbers.jsonl"}, "holds int 3, expected text"),
    "unknown label": ({"validation_file": "/data/other-label.csv"}, "'maybe'"),
    "classes next to numbers": ({"train_file": "/data/fractions.csv"}, "holds 'pos', expected a number"),
    "evaluation without data": (
        {"validation_file": None, "eval_strategy": "steps"},
        "--eval_strategy steps needs",
    ),
    "training that is not wanted": ({"do_train": "false", "validation_file": None}, "nothing to do: pass"),
    "one label": ({"train_file": "/data/one.csv"}, "expected two or more"),
    "missing model": ({"model_name_or_path": "/data/none"}, "does not exist"),
    "model without weights": ({"model_name_or_path": "/data/no-weights"}, "has no weights"),
    "weights of another user": ({"model_name_or_path": "/data/closed"}, "cannot be read by user 1000"),
    "half of the weights": ({"model_name_or_path": "/data/cut"}, "cannot be loaded"),
    "no vocabulary": ({"model_name_or_path": "/data/no-tokens"}, "has no vocabulary"),
    "too long inputs": ({"max_seq_length": 65}, "more than the 64 positions"),
    "unknown flag": ({"max_seq_lenght": 3}, "did you mean --max_seq_length?"),
    "bad value": ({"learning_rate": "fast"}, "invalid float value: 'fast'"),
    "flag of a GPU": ({"deepspeed": "x.json"}, "no meaning on CPU ranks"),
    "missing checkpoint": ({"resume_from_checkpoint": "/data/none"}, "the folder does not exist"),
    "a batch for no rank": (
        {"dataloader_drop_last": True, "per_device_train_batch_size": 64},
        "--dataloader_drop_last with 22 rows, expected 64 or more",
    ),
    "no stride left": (
        {"train_file": "/data/squad.json", "validation_file": "/data/squad.json", "doc_stride": 30},
        "use a smaller --doc_stride",
    ),
}

# Modes of an output folder and of a file in it, and what is said of them.
CLOSED = {
    "closed folder": (0o555, 0o666, "cannot be written to by user 1000 (Permission denied)"),
    "closed file": (0o777, 0o444, "has files that user 1000 cannot write to, such as config.json: change "),
}


@pytest.fixture(scope="module")
def alone(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Runs of one rank, and the folder that they wrote to."""
    output = tmp_path_factory.mktemp("alone")
    for name, (folder_mode, file_mode, _) in CLOSED.items():
        (output / name).mkdir()
        (output / name / "config.json").touch()
        (output / name / "config.json").chmod(file_mode)
        (output / name).chmod(folder_mode)
    lines = {name: line(f"/output/{name}", **changes) for name, (changes, _) in BAD.items()}
    lines["wrong key"] = ["/data/wrong-key.yaml"]
    lines["wrong value"] = ["/data/wrong-value.yaml", *line("/output/never")]
    text = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    config = text.partition("    # config.yaml\n")[2].partition("\n\n")[0]
    (output / "documented.yaml").write_text(textwrap.dedent(config), encoding="utf-8")
    own = line("/output/documented", learning_rate=None, num_train_epochs=1)
    lines["documented"] = ["/output/documented.yaml", *own]
    lines["print"] = ["/data/parity.yaml", "--print-config", "--seed", "3", "--max_grad_norm", "1"]
    lines["print"] += ["--null_score_diff_threshold", "-1e-3"]
    lines |= {name: line(f"/output/{name}") for name in CLOSED}
    # As the last one, because the variable stays.
    lines["hidden bf16"] = ["ONEDNN_MAX_CPU_ISA=AVX512_CORE"]
    lines["hidden bf16"] += line("/output/bf16", train_file="/data/none.csv", bf16=True)
    return run_alone(image, train_data, output, lines), output


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2_and_nothing_is_written(alone: Alone, name: str) -> None:
    runs, output = alone
    assert runs[name]["code"] == 2
    lines = runs[name]["stderr"].splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert BAD[name][1] in lines[0]
    assert not (output / name).exists()


def test_a_config_files_errors_name_its_line_and_what_is_printed_is_a_config_file(alone: Alone) -> None:
    runs, _ = alone
    said = "error: config file '/data/wrong-key.yaml' line 2: unknown key 'max_seq_lenght': did you mean"
    assert (runs["wrong key"]["code"], runs["wrong value"]["code"]) == (2, 2)
    assert runs["wrong key"]["stderr"].splitlines() == [f"{said} max_seq_length?"]
    assert "line 1: argument --learning_rate" in runs["wrong value"]["stderr"]
    assert runs["print"]["code"] == 0
    printed = runs["print"]["stderr"].splitlines()
    expected = {
        "optim: sgd",
        "max_grad_norm: 1.0",
        "lr_scheduler_type: constant",
        "eval_strategy: 'no'",
        "seed: 3",
        "null_score_diff_threshold: -0.001",
    }
    assert {text for text in printed if text and not text.startswith("#")} == expected
    assert "# num_train_epochs: 3.0" in printed
    assert runs["documented"]["code"] == 0, runs["documented"]


@pytest.mark.parametrize("name", CLOSED)
def test_an_output_folder_that_the_user_may_not_write_to_is_refused(alone: Alone, name: str) -> None:
    run = alone[0][name]
    assert run["code"] == 2, run
    (error,) = [text for text in run["stderr"].splitlines() if text.startswith("error: ")]
    assert f"'/output/{name}' {CLOSED[name][2]}" in error
    assert "Traceback" not in run["stderr"]


def test_bf16_on_a_cpu_that_emulates_it_is_warned_about(
    run_in_image: containers.RunInImage, train_data: Path, tmp_path: Path
) -> None:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    (tmp_path / "cpuinfo").write_text(cpuinfo.replace("avx512_bf16", "").replace("amx_bf16", ""))
    done = run_in_image(
        "train",
        *line("/tmp/run", train_file="/data/none.csv", bf16=True),
        docker_args=[*mounts(train_data), "--volume", f"{tmp_path / 'cpuinfo'}:/proc/cpuinfo:ro"],
    )
    assert "warning: --bf16: this CPU has no bf16 instructions" in done.stderr
    assert done.returncode == 2  # the missing file keeps this short


def test_bf16_is_warned_about_where_the_instructions_are_hidden(alone: Alone) -> None:
    run = alone[0]["hidden bf16"]
    assert "warning: --bf16: this CPU has no bf16 instructions" in run["stderr"]
    assert "or ONEDNN_MAX_CPU_ISA hides them" in run["stderr"]
    assert run["code"] == 2
