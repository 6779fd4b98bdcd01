"""Encoders without padding: against the padded models, and in training runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from entrypoints import contract
from tests import containers
from tests.containers import RunInImage
from tests.image.train_runs import ONE_THREAD, PARITY, Runs, line, mounts, result

SCRIPTS = Path(__file__).with_name("scripts")
NAME = "no-padding"
TEXTS = ("tom lives in paris", "mary", "tom and mary and tom lives in rome", "rome")
TAGGED = [{"tokens": text.split(), "ner_tags": ["B", *"O" * text.count(" ")]} for text in TEXTS]
WINDOWS = {"max_seq_length": 48, "doc_stride": 8}
FLAGS: dict[str, dict[str, object]] = {
    "classifier": {},
    "tags": {"train_file": "/data/tags.jsonl", "validation_file": None},
    "words": {"task": "fill-mask", "text_column_names": "text"},
    "recomputed": {"gradient_checkpointing": True},
    "adapter": {"use_peft": True, "lora_target_modules": "query,value"},
    "answers": {"train_file": "/data/squad.json", "validation_file": "/data/squad.json", **WINDOWS},
}


@pytest.mark.parametrize("name", ["no_padding.py", "changed_encoders.py", "no_padding_decoders.py"])
def test_losses_and_gradients_are_those_with_padding_and_the_rest_falls_back(
    run_in_image: RunInImage, name: str
) -> None:
    script = SCRIPTS / name
    done = run_in_image(
        *("run", "--no-adapt", NAME, f"/s/{name}"),
        env=ONE_THREAD,
        docker_args=("--volume", f"{SCRIPTS}:/s:ro"),
    )
    assert done.returncode == 0, done.stderr
    checks = re.findall(r"^def (\w+)\(\) -> None:$", script.read_text(), re.MULTILINE)
    assert sorted(done.stdout.split()) == sorted(checks)


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Runs]]:
    """The same runs with padding in the layers (off) and without (on): their outputs, and what each printed."""
    (train_data / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TAGGED * 3))
    found = {}
    for switch in ("on", "off"):
        output = tmp_path_factory.mktemp(switch)
        output.chmod(0o777)
        lines = [
            line(f"/output/{name}", **{**PARITY, "num_train_epochs": 1, "learning_rate": 0.01, **flags})
            for name, flags in FLAGS.items()
        ]
        (output / "lines.json").write_text(json.dumps(lines))
        env = {**ONE_THREAD, **({contract.NO_ADAPT: NAME} if switch == "off" else {})}
        done = containers.run(
            image,
            *("python", "/tests/many_runs.py", "/output/lines.json"),
            env=env,
            docker_args=mounts(train_data, output),
        )
        found[switch] = output, dict(zip(FLAGS, json.loads(containers.works(done)), strict=True))
    return found


@pytest.mark.parametrize("name", FLAGS)
def test_train_has_the_same_losses_with_and_without_padding(runs: dict[str, tuple[Path, Runs]], name: str) -> None:
    assert runs["on"][1][name]["code"] == 0, runs["on"][1][name]["stderr"]
    on, off = (result(output / name) for output, _ in runs.values())
    assert on["tokens_useful"] == off["tokens_useful"] == on["tokens_computed"] < off["tokens_computed"]
    assert "computes padding" not in runs["on"][1][name]["stderr"]
    if name == "answers":  # padding has no probability: another loss
        assert on["losses"][0] < off["losses"][0]
        return
    assert on["losses"] == pytest.approx(off["losses"], rel=1e-4)
    if on["metrics"]:
        assert on["metrics"]["eval_loss"] == pytest.approx(off["metrics"]["eval_loss"], rel=1e-4)


ALONE = """
import transformers

for config, head in ((transformers.BertConfig, transformers.BertForSequenceClassification),
                     (transformers.MPNetConfig, transformers.MPNetForSequenceClassification)):
    small = config(hidden_size=24, num_hidden_layers=1, intermediate_size=32, vocab_size=40)
    rows = [{"input_ids": [5] * n, "attention_mask": [1] * n, "label": n % 2} for n in (3, 7)]
    pad = transformers.DataCollatorWithPadding(transformers.AutoTokenizer.from_pretrained("/data/tiny"))
    arguments = transformers.TrainingArguments("/tmp/x", max_steps=1, save_strategy="no", disable_tqdm=True)
    transformers.Trainer(head(small), arguments, train_dataset=rows, data_collator=pad).train()
"""


def test_run_reports_what_a_script_gets(run_in_image: RunInImage, train_data: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "alone.py").write_text(ALONE)
    mount = (*mounts(train_data), "--volume", f"{tmp_path}:/s:ro")
    done = run_in_image("run", "/s/alone.py", env=ONE_THREAD, docker_args=mount)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(f"adapted ({NAME})")]
    assert len(lines) == 2, done.stderr
    assert lines[0] == f"adapted ({NAME}): BertModel computes no padding in its layers"
    assert lines[1].startswith(f"adapted ({NAME}): MPNetForSequenceClassification computes padding: it is not")
