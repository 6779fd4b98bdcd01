"""Tokens of large data: two ranks tokenize once, later runs use the tokens again, and nothing depends on them."""

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import containers
from tests.image.train_runs import ONE_THREAD

HERE = Path(__file__).parent
# Enough for more tokens than a rank keeps in memory: eight bytes each.
TEXTS = 3500
FLAGS = {
    "model_name_or_path": "/work/llama",
    "task": "text-generation",
    "train_file": "/work/texts.jsonl",
    "max_seq_length": 128,
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "eval_strategy": "no",
    "save_strategy": "no",
    "lr_scheduler_type": "constant",
    "optim": "sgd",
}
SAVING = {"save_strategy": "steps", "save_steps": 2}
# Runs one after the other, by name: the output folder and the flags.
RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "first": ("/output/run", SAVING),
    "resumed": ("/output/run", {**SAVING, "max_steps": 4, "resume_from_checkpoint": "true"}),
    "other tokenizer": ("/output/run", {"tokenizer_name": "/work/other", "overwrite_output_dir": "true"}),
    "at once": ("/output/at-once", {"max_steps": 4}),
    "small": ("/output/small", {"max_train_samples": 40}),
    "full": ("/full/run", {}),
}

# A tokenizer with one more rule. Only its file tells that the tokens may differ.
OTHER = """
import tokenizers, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained("/work/llama")
tokenizer.backend_tokenizer.normalizer = tokenizers.normalizers.Lowercase()
tokenizer.save_pretrained("/work/other")
"""


class Found(NamedTuple):
    """What a run printed, how many texts each rank tokenized, and its result."""

    stderr: str
    texts: list[int]
    result: dict[str, Any]
    files: list[str] | None


@pytest.fixture(scope="module")
def runs(image: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    work, output = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("output")
    for folder in (work, output):
        folder.chmod(0o777)
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefgh", k=4)) for _ in range(300)]
    texts = (" ".join(chance.choices(words, k=60)) for _ in range(TEXTS))
    (work / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    lines = {
        name: [
            word
            for key, value in {**FLAGS, "output_dir": place, **changes}.items()
            for word in (f"--{key}", str(value))
        ]
        for name, (place, changes) in RUNS.items()
    }
    (output / "lines.json").write_text(json.dumps(lines))
    job = "launch --nproc-per-node 2 -- run --no-adapt all /tests/scripts/token_runs.py /output/lines.json /output"
    script = f"""
    python /tests/tiny_model.py /work/bert {shlex.quote(" ".join(words[:9]))} /work/llama &&
    python -c {shlex.quote(OTHER)} && entrypoint {job}
    """
    mounts = [f"{work}:/work", f"{HERE}:/tests:ro", f"{output}:/output"]
    options = [word for volume in mounts for word in ("--volume", volume)] + ["--tmpfs", "/full:size=11m,mode=777"]
    counted = {"PYTHONPATH": "/tests/scripts/counted", **ONE_THREAD}
    containers.works(containers.run(image, "sh", "-c", script, env=counted, docker_args=options, timeout=600))
    found = {}
    for name in RUNS:
        ranks = [json.loads((output / f"{name}.{rank}.json").read_text()) for rank in (0, 1)]
        log = "".join(rank["stderr"] for rank in ranks)
        assert [rank["code"] for rank in ranks] == [0, 0], log
        texts_of = [int(number) for number in re.findall(r"rank \d tokenized (\d+) texts", log)]
        found[name] = Found(log, sorted(texts_of), ranks[0]["result"], ranks[0]["files"])
    return found


def test_one_of_two_ranks_tokenizes_all_texts_and_leaves_one_file(runs: dict[str, Found]) -> None:
    first, second = runs["first"].texts
    assert second == TEXTS
    assert 0 < first < TEXTS
    assert len(runs["first"].files or ()) == 1


def test_a_resumed_run_uses_the_tokens_and_continues_where_the_first_run_ended(runs: dict[str, Found]) -> None:
    assert max(runs["resumed"].texts) < TEXTS
    assert runs["resumed"].files == runs["first"].files
    assert runs["resumed"].result["weights_sha256"] == runs["at once"].result["weights_sha256"]


def test_the_tokens_of_another_tokenizer_replace_the_file(runs: dict[str, Found]) -> None:
    assert max(runs["other tokenizer"].texts) == TEXTS
    assert len(runs["other tokenizer"].files or ()) == 1
    assert runs["other tokenizer"].files != runs["resumed"].files


def test_without_space_for_the_file_the_results_are_the_same(runs: dict[str, Found]) -> None:
    full = runs["full"]
    note = r"note: the tokens are not kept in '/full/run/_tokens' \(.*half of the free space\), but in TMPDIR"
    assert re.search(note, full.stderr)
    assert full.texts == [TEXTS, TEXTS]
    assert full.result["losses"] == runs["first"].result["losses"]
    assert full.result["weights_sha256"] == runs["first"].result["weights_sha256"]


def test_few_tokens_leave_no_file(runs: dict[str, Found]) -> None:
    assert runs["small"].texts == [40, 40]
    assert runs["small"].files is None
