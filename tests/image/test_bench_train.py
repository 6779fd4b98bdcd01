"""`./inv bench train` with the tiny job: real ranks, the real profiler, the real ceiling."""

import json
from pathlib import Path

import pytest

from benchmarks.split import CLASSES
from tests import containers
from tooling.bench import report, runner
from tooling.bench.train import run
from tooling.bench.train.run import TrainOptions
from tooling.engine import api
from tooling.image.choice import Choice

ROW = {"job", "recipe", "ranks", "samples_per_second", "ceiling_share", "peak_memory_bytes"}


def test_a_tiny_job_is_measured_beside_its_ceiling(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    options = TrainOptions(Choice(), job="tiny", recipe="run_cpu,ours", ranks="2", steps=3, repeats=1, json=True)
    run.run(options)
    document = json.loads(capsys.readouterr().out)
    (run_cpu, ours) = document["rows"]
    assert run_cpu.keys() >= ROW
    assert ours.keys() >= ROW
    assert (run_cpu["samples_per_second"], run_cpu["failed"]) == (None, False)
    assert (ours["reason"], ours["ranks"], ours["backend"], ours["steps"]) == (None, 2, "ccl", [3])
    assert ours["batches"] == [[8, 32, 3]]
    assert ours["samples_per_second"] > 0
    assert (
        0 < ours["cpu_seconds_per_sample"] < 2.5 * 2 / ours["samples_per_second"]
    )  # of two threads, and their helpers
    assert ours["peak_memory_bytes"] > 2 * 100e6
    assert {"libtcmalloc", "libiomp5"} <= set(ours["preloads"])
    assert tuple(ours["split"]) == CLASSES
    assert ours["split"]["products"] > 0
    assert ours["split"]["communication"] > 0
    assert ours["split"]["optimizer"] > 0
    # 14.2 MFLOP a sample, forward and backward: so says torch's own counter (torch.utils.flop_counter) too.
    assert ours["gflops"] / ours["samples_per_second"] == pytest.approx(113_448_960 / 8 / 1e9, rel=0.01)
    assert 0 < ours["ceiling_share"] < 1
    assert document["ceiling_gflops"] > ours["gflops"]
    (written,) = tmp_path.glob("train-*.json")
    assert json.loads(written.read_text()) == document
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_language_model_with_adapters_is_measured(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    run.run(TrainOptions(Choice(), job="tiny-lora", recipe="ours", ranks="1", steps=4, repeats=1, json=True))
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["reason"], row["steps"]) == (None, [4])
    # Samples have up to 64 tokens (28 on average), of which 30 to 70% have a label.
    assert all(samples == 4 and 8 <= length <= 64 for samples, length, _count in row["batches"])
    share = row["labelled_tokens_per_second"] / (row["samples_per_second"] * 28)
    assert 0.2 < share < 0.9


ROWS = """
import json
from pathlib import Path
from benchmarks import jobs, models
pairs = models.data(jobs.BY_NAME["mrpc-guide"], Path("/bench/data/pairs.csv"))[0]
short = models.data(jobs.BY_NAME["minilm-mrpc"], Path("/bench/data/pairs.csv"))[0]
questions = models.data(jobs.BY_NAME["squad-guide"], Path("/bench/data/squad.json"))[0]
words = models.AutoTokenizer.from_pretrained(models.PRETRAINED)
answers = [
    words.decode(row["input_ids"][row["start_positions"] : row["end_positions"] + 1]) for row in questions
]
print(json.dumps({
    "padded": [len(pairs[0]["input_ids"]), sum(pairs[0]["attention_mask"]), pairs[0]["label"]],
    "short": len(short[0]["input_ids"]),
    "questions": [[len(row["input_ids"]), sum(row["attention_mask"])] for row in questions],
    "answers": answers,
}))
"""


def test_the_rows_of_a_file_are_preprocessed_as_in_the_guides(
    image: str, model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,label\nA dog sat.,A cat,1\n")
    context = "The cat sat. " * 120  # 480 tokens, and 481 with the last sentence
    questions = [
        {"question": " Who sat?", "answers": [{"text": "dog", "answer_start": len(context)}]},
        {"question": "Why?", "answers": []},
    ]
    context = f"{context}dog"
    article = {"paragraphs": [{"context": context, "qas": questions}]}
    row = {"context": context, "question": "Who?", "answers": {"text": ["cat"], "answer_start": [4]}}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [article, row]}))
    tmp_path.chmod(0o755)  # root's containers have another user
    container = runner.container(api.ensure(), image, None, model_folder, tmp_path)
    done = container.run(("python", "-c", ROWS), containers.TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    rows = json.loads(done.stdout)
    # [CLS] and two [SEP], five words and a full stop.
    assert (rows["padded"], rows["short"]) == ([128, 9, 1], 9)
    # [CLS] and two [SEP], the question's three tokens, and 378 of the 481 tokens in the first window. The second
    # repeats 128 of them. The first does not have the answer.
    # The row of run_qa.py has a shorter question, and its answer in the first window.
    assert rows["questions"][:2] == [[384, 384], [384, 6 + 481 - 378 + 128]]
    assert rows["answers"] == ["[CLS]", "dog", "cat", "[CLS]"]
