"""Encoders without padding: against the padded models, and in training runs."""

import json
from pathlib import Path

import pytest

from cpu_train_stack import contract
from tests import containers
from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT, checks_of, printed
from tests.image.train_runs import ONE_THREAD, PARITY, Runs, line, mounts, result

NAME = "no-padding"
TEXTS = ("tom lives in paris", "mary", "tom and mary and tom lives in rome", "rome")
TAGGED = [{"tokens": text.split(), "ner_tags": ["B", *"O" * text.count(" ")]} for text in TEXTS]
WINDOWS = {"max_seq_length": 48, "doc_stride": 8}
SAVING = {
    "optim": "adamw_torch_fused",
    "per_device_train_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 9,
}
# Runs that resume with the other choice, and the checkpoints that they resume from.
RESUMED = {"padded": "/on/classifier/checkpoint-2", "unpadded": "/output/classifier/checkpoint-2"}
FLAGS: dict[str, dict[str, object]] = {
    "classifier": SAVING,
    "tags": {"train_file": "/data/tags.jsonl", "validation_file": None},
    "words": {"task": "fill-mask", "text_column_names": "text"},
    "recomputed": {"gradient_checkpointing": True},
    "adapter": {"use_peft": True, "lora_target_modules": "query,value"},
    "answers": {"train_file": "/data/squad.json", "validation_file": "/data/squad.json", **WINDOWS},
}


@pytest.mark.parametrize("name", ["no_padding", "changed_encoders", "no_padding_decoders"])
def test_losses_and_gradients_are_those_with_padding_and_the_rest_falls_back(
    run_in_image: RunInImage, name: str
) -> None:
    done = run_in_image("run", "--no-adapt", NAME, f"/s/{name}.py", env=ONE_THREAD, docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == checks_of(name)


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Runs]]:
    """The same runs with padding in the layers (off) and without (on): their outputs, and what each printed.

    Those with padding are followed by RESUMED.
    """
    (train_data / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TAGGED * 3))
    found: dict[str, tuple[Path, Runs]] = {}
    for switch in ("on", "off"):
        output = tmp_path_factory.mktemp(switch)
        output.chmod(0o777)
        flags, env, volumes = dict(FLAGS), ONE_THREAD, mounts(train_data, output)
        if switch == "off":
            flags |= {name: {**SAVING, "resume_from_checkpoint": path} for name, path in RESUMED.items()}
            env = {**env, contract.NO_ADAPT: NAME}
            volumes += ["--volume", f"{found['on'][0]}:/on:ro"]
        lines = {
            name: line(f"/output/{name}", **{**PARITY, "num_train_epochs": 1, "learning_rate": 0.01, **changes})
            for name, changes in flags.items()
        }
        if switch == "off":
            lines["unpadded"].insert(0, f"{contract.NO_ADAPT}=")
        (output / "lines.json").write_text(json.dumps(list(lines.values())))
        argv = ("python", "/tests/many_runs.py", "/output/lines.json")
        done = containers.run(image, *argv, env=env, docker_args=volumes)
        found[switch] = output, dict(zip(lines, json.loads(containers.works(done)), strict=True))
    return found


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_of_the_other_kind_continues_with_the_same_losses(
    runs: dict[str, tuple[Path, Runs]], name: str
) -> None:
    output, printed = runs["off"]
    assert printed[name]["code"] == 0, printed[name]["stderr"]
    found, expected = result(output / name), result(output / "classifier")
    assert found["resumed_from"] == RESUMED[name]
    assert (found["tokens_computed"] > found["tokens_useful"]) is (name == "padded")
    assert len(found["losses"]) == 6
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert found["metrics"]["eval_loss"] == pytest.approx(expected["metrics"]["eval_loss"], rel=1e-4)


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
                     (transformers.MPNetConfig, transformers.MPNetForSequenceClassification),
                     (transformers.LlamaConfig, transformers.LlamaForSequenceClassification)):
    size = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    small = config(**size, vocab_size=40, pad_token_id=0)
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
    assert len(lines) == 3, done.stderr
    assert lines[0] == f"adapted ({NAME}): BertModel computes no padding in its layers"
    assert lines[1].startswith(f"adapted ({NAME}): MPNetForSequenceClassification computes padding: it is not")
    assert lines[2] == f"adapted ({NAME}): LlamaModel computes no padding in its layers"
