"""What the ranks of real jobs record about their steps, and the report at the end."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.records import job, record, stragglers
from cpu_train_stack.records.job import RecordedJob
from tests.containers import RunInImage
from tests.image.train_runs import ONE_THREAD

SCRIPT = """
import gc, os, signal, time
gc.disable()  # imports are quicker
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

IS_FIRST = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
NAMES = ("SLOW", "KILLED", "FAILED", "STOPPED", "STEPS")
SLOW, KILLED, FAILED, STOPPED, STEPS = (int(os.environ.get(name, -1)) for name in NAMES)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, row):
        return {"input_ids": torch.arange(1, 9), "labels": torch.tensor(row % 2)}


class Fault(TrainerCallback):
    def on_step_end(self, args, state, control, **options):
        if IS_FIRST and state.global_step == 7 and args.process_index == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if IS_FIRST and state.global_step == 7 and args.process_index == FAILED:
            raise RuntimeError("no more rows")
        if state.global_step == 7 and args.process_index == STOPPED:
            os.kill(os.getppid(), signal.SIGTERM)  # launch, or tini
            time.sleep(60)


torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=20)
)
if int(os.environ["RANK"]) == SLOW:
    forward = model.bert.forward

    def slow(*arguments, **options):
        time.sleep(0.3)
        return forward(*arguments, **options)

    model.bert.forward = slow
arguments = TrainingArguments(
    "/output", max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2, save_steps=5,
    logging_steps=5, report_to=[], disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Fault()])
trainer.train(resume_from_checkpoint=not IS_FIRST)
"""
Launch = Callable[..., tuple[int, Path]]


@pytest.fixture
def launch(run_in_image: RunInImage, tmp_path: Path) -> Launch:
    """Runs the script under `launch`, or without it if `restarts` is None. Returns exit code and output folder."""
    tmp_path.chmod(0o755)
    (tmp_path / "script.py").write_text(SCRIPT)
    output = tmp_path / "output"
    output.mkdir()
    output.chmod(0o777)

    def start(*options: str, ranks: int = 2, restarts: int | None = 0, **environment: object) -> tuple[int, Path]:
        launcher = ("launch", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--")
        done = run_in_image(
            *(() if restarts is None else launcher),
            *("run", *options, "/s/script.py"),
            env={**ONE_THREAD, **{name: str(value) for name, value in environment.items()}},
            docker_args=("--volume", f"{tmp_path}:/s:ro", "--volume", f"{output}:/output"),
        )
        print(done.stderr)
        return done.returncode, output

    return start


def test_a_script_records_its_steps_the_rank_that_it_waits_for_and_a_restart(launch: Launch) -> None:
    """Rank 1 is slow. It is killed, and the job continues from its checkpoint."""
    code, output = launch(SLOW=1, KILLED=1, STEPS=20, restarts=1)
    assert code == 0
    found = job.read(output)
    assert any("rank 1 (local 1, node" in text and "was killed by SIGKILL" in text for text in failures(found))
    for rank in found.ranks.values():
        assert [start.first_step for start in rank.starts] == [0, 5]
        assert [one.step for one in rank.steps] == list(range(1, 21))
        # Within two seconds, a killed rank may have written nothing.
        assert rank.repeated in (0, 1, 2)
        assert all((one.rows, one.computed, one.useful) == (8, 64, 64) for one in rank.steps)
        for one in rank.steps:
            if one.step not in (1, 6):  # each the first of a process
                parts = one.forward + one.backward + one.wait + one.read + one.optimizer
                assert one.seconds * 0.8 < parts < one.seconds * 1.01
        assert rank.samples[-1].memory > 100e6
    assert found.end is not None
    assert found.end.name == "end"
    assert [log.step for log in found.first.logs if "loss" in log.values] == [5, 10, 15, 20]
    assert [event.step for event in found.first.events if event.name == "checkpoint"] == [5, 10, 15, 20]
    means = stragglers.shares(found)
    # Two micro-batches a step, 0.3 s each.
    assert means[1].forward == pytest.approx(0.6, abs=0.25)
    assert means[0].wait == pytest.approx(0.6, abs=0.3)
    assert means[1].wait < 0.3
    slowest = stragglers.find(found)
    assert slowest is not None
    assert (slowest.rank, slowest.cause) == (1, "unknown")
    page = (output / "report.html").read_text()
    assert "Rank 1 slows the job down" in page
    assert "was killed by SIGKILL" in page


OTHER_TRAINERS = """
import torch
from transformers import Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, row):
        return {"input_ids": [1, row], "prompt": "text"}


class Own(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = model(torch.ones(len(inputs), 2)).square().mean()
        loss.backward()
        return loss.detach()

    def _track_num_input_tokens(self, inputs):
        pass

    def floating_point_ops(self, inputs):
        return 0


for collate in (lambda rows: rows, lambda rows: {"input_ids": [row["input_ids"] for row in rows]}):
    arguments = TrainingArguments(
        "/output", max_steps=2, report_to=[], save_strategy="no", remove_unused_columns=False, disable_tqdm=True,
    )
    trainer = Own(torch.nn.Linear(2, 1), arguments, train_dataset=Rows(), data_collator=collate)
    trainer.train()
print("done")
"""


def test_trainers_with_other_inputs_train(run_in_image: RunInImage, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "script.py").write_text(OTHER_TRAINERS)
    done = run_in_image(
        *("run", "--quiet", "/output/script.py"), env=ONE_THREAD, docker_args=("--volume", f"{tmp_path}:/output")
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    assert [one.step for one in job.read(tmp_path).first.steps] == [1, 2]


def test_records_can_be_turned_off(launch: Launch) -> None:
    code, output = launch("--no-adapt", "step-records", ranks=1, restarts=None, STEPS=2)
    assert code == 0
    assert not (output / record.FOLDER).exists()
    assert not (output / "report.html").exists()


def failures(found: RecordedJob) -> list[str]:
    return [one.text for rank in found.ranks.values() for one in rank.events if one.name == "failure"]


@pytest.mark.parametrize(("fault", "ranks"), [("KILLED", 1), ("FAILED", 2)], ids=["killed", "failed"])
def test_a_failed_job_has_a_report_with_the_first_failure(launch: Launch, fault: str, ranks: int) -> None:
    last = ranks - 1
    code, output = launch(ranks=ranks, **{fault: last}, STEPS=8)
    assert code != 0
    found = job.read(output)
    assert found.end is not None
    expected = f"rank {last} (local {last}, node " if fault == "KILLED" else "RuntimeError: no more rows"
    assert found.end.text.startswith(expected), failures(found)
    assert expected in (output / "report.html").read_text()


@pytest.mark.parametrize(("ranks", "restarts"), [(1, None), (2, 0)], ids=["without launch", "launch"])
def test_a_stopped_job_has_a_report(launch: Launch, ranks: int, restarts: int | None) -> None:
    code, output = launch(ranks=ranks, restarts=restarts, STOPPED=ranks - 1, STEPS=8)
    assert code == contract.TERMINATED_EXIT_CODE
    assert failures(job.read(output)) == []
    assert "Stopped by SIGTERM after " in (output / "report.html").read_text()


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with what TensorBoard's event files need."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "packages"))
    subprocess.run([*pip, "tensorboardX", "protobuf"], check=True, timeout=300)
    return tmp_path / "packages"


def test_train_records_what_result_json_and_tensorboard_say(
    run_in_image: RunInImage, train_data: Path, tmp_path: Path, packages: Path
) -> None:
    tmp_path.chmod(0o777)
    tensorboard = {"PYTHONPATH": "/packages", "TENSORBOARD_LOGGING_DIR": "/output/events"}
    done = run_in_image(
        *("launch", "--nproc-per-node=2", "--", "train", "--model_name_or_path=/data/tiny"),
        *("--train_file=/data/train.csv", "--validation_file=/data/eval.csv", "--max_seq_length=32"),
        *("--per_device_train_batch_size=2", "--max_steps=4", "--eval_strategy=steps", "--eval_steps=2"),
        "--eval_on_start",
        *("--logging_steps=2", "--output_dir=/output", "--hub_token=hf_secret", "--report_to=tensorboard"),
        *("--no_cuda", "--ddp_backend=gloo"),
        env={**ONE_THREAD, **tensorboard, contract.IMAGE: "an image"},
        docker_args=(
            *("--volume", f"{train_data}:/data:ro", "--volume", f"{tmp_path}:/output"),
            *("--volume", f"{packages}:/packages:ro"),
        ),
    )
    assert done.returncode == 0, done.stderr
    result, found = json.loads((tmp_path / "result.json").read_text()), job.read(tmp_path)
    assert result["backend"] == "gloo"
    ranks = found.ranks.values()
    for step, loss in enumerate(result["losses"]):
        assert loss == pytest.approx(sum(rank.steps[step].loss or 0.0 for rank in ranks) / 2, abs=2e-6)
    assert result["tokens_useful"] == sum(one.useful for rank in ranks for one in rank.steps)
    assert result["tokens_computed"] == sum(one.computed for rank in ranks for one in rank.steps)
    start = found.first.start
    assert (start.launcher, start.world_size, start.image, start.last_step) == ("torchrun", 2, "an image", 4)
    assert start.config["max_steps"] == 4
    assert start.plan["reasons"]
    assert start.topology["cores"]
    assert [log.step for log in found.first.logs if "eval_accuracy" in log.values] == [0, 2, 4]
    evaluations = [event for event in found.first.events if event.name == "evaluation"]
    assert [one.step for one in evaluations] == [0, 2, 4]
    assert all(one.seconds <= one.time - start.time + 0.01 for one in evaluations), (start, evaluations)
    texts = [path.read_text() for path in (*(tmp_path / record.FOLDER).iterdir(), tmp_path / "report.html")]
    assert not any("hf_secret" in text for text in texts)
    (events,) = (tmp_path / "events").glob("**/events*")
    for name in ("step_seconds", "step_waiting_seconds", "step_reading_seconds", "tokens_per_second"):
        assert f"train/{name}".encode() in events.read_bytes()
