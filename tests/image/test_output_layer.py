"""The output layer with its loss: against torch's scores of all tokens, and in training runs."""

import json
import re
from pathlib import Path

import pytest

from cpu_train_stack import contract
from tests import containers
from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT, checks_of, printed
from tests.image.train_runs import ONE_THREAD, PARITY, Runs, line, mounts, result

NAME = "output-layer"
NAMES = ("tom", "mary", "anna")
CHAT = [
    {
        "messages": [
            {"role": "user", "content": f"where does {name} live? " * (1 + number % 3)},
            {"role": "assistant", "content": f"{name} lives in paris."},
        ]
    }
    for number, name in enumerate(NAMES * 4)
]
DECODER: dict[str, object] = {
    "model_name_or_path": "/data/llama",
    "train_file": "/data/chat.jsonl",
    "validation_file": "/data/chat.jsonl",
}
WORDS: dict[str, object] = {"task": "fill-mask", "text_column_names": "text"}
FLAGS: dict[str, dict[str, object]] = {
    "chat": DECODER,
    "adapter": {**DECODER, "use_peft": True},
    "packed": {**DECODER, "packing": True},
    "accumulated": {
        **DECODER,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
    },
    "words": WORDS,
    "smoothed": {**WORDS, "label_smoothing_factor": 0.1},
    "softcap": {**DECODER, "model_name_or_path": "/data/softcap"},
}
SOFTCAP = """
import transformers
transformers.set_seed(1)
tokenizer = transformers.AutoTokenizer.from_pretrained("/data/llama")
config = transformers.Gemma2Config(
    vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, final_logit_softcapping=2.0,
)
transformers.Gemma2ForCausalLM(config).save_pretrained("/data/softcap")
tokenizer.save_pretrained("/data/softcap")
"""


@pytest.mark.parametrize("script", ["output_layer", "other_losses"])
def test_losses_and_gradients_are_those_of_all_scores(run_in_image: RunInImage, script: str) -> None:
    command = ("run", "--quiet", "--no-adapt", "all", f"/s/{script}.py")
    done = run_in_image(*command, env=ONE_THREAD, docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == checks_of(script)


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Runs]]:
    """The same runs with our output layer and with torch's: their outputs, and what each printed."""
    train_data.chmod(0o777)
    (train_data / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHAT))
    text = " ".join(message["content"] for row in CHAT for message in row["messages"])
    writable = mounts(train_data, read_only=False)
    for command in (
        ("python", "/tests/tiny_model.py", "/data/unused", text, "/data/llama"),
        ("python", "-c", SOFTCAP),
    ):
        containers.works(containers.run(image, *command, env=ONE_THREAD, docker_args=writable))
    found = {}
    for off in ("", NAME):
        output = tmp_path_factory.mktemp(off or "ours")
        output.chmod(0o777)
        lines = [
            line(f"/output/{name}", **{**PARITY, "num_train_epochs": 1, "learning_rate": 0.1, **flags})
            for name, flags in FLAGS.items()
        ]
        (output / "lines.json").write_text(json.dumps(lines))
        done = containers.run(
            image,
            *("python", "/tests/many_runs.py", "/output/lines.json"),
            env={**ONE_THREAD, contract.NO_ADAPT: off},
            docker_args=mounts(train_data, output),
        )
        found[off] = output, dict(zip(FLAGS, json.loads(containers.works(done)), strict=True))
    return found


@pytest.mark.parametrize("name", FLAGS)
def test_train_has_the_same_losses(runs: dict[str, tuple[Path, Runs]], name: str) -> None:
    printed = runs[""][1][name]
    assert printed["code"] == 0, printed["stderr"]
    assert ("computes scores for tokens without a label too" in printed["stderr"]) == (name == "softcap")
    ours, torchs = (result(output / name) for output, _ in runs.values())
    assert len(ours["losses"]) > 1
    assert ours["losses"] == pytest.approx(torchs["losses"], rel=1e-4)
    for name in ("eval_loss", "eval_perplexity", "eval_accuracy"):
        assert ours["metrics"][name] == pytest.approx(torchs["metrics"][name], rel=1e-4)


def test_run_gives_an_unmodified_script_the_same_losses(run_in_image: RunInImage) -> None:
    kinds = ("plain", "accumulated", "adapter", "prompts", "softcap", "reads-scores")
    found = {}
    for options in ((), ("--no-adapt", NAME)):
        done = run_in_image(
            *("launch", "--nproc-per-node=2", "--", "run", *options, "/s/decoder.py", *kinds),
            env=ONE_THREAD,
            docker_args=MOUNT,
        )
        assert done.returncode == 0, done.stderr
        found[options] = {
            kind: [float(number) for number in re.findall(rf"^{kind} (.*)$", done.stdout, re.MULTILINE)[0].split()]
            for kind in kinds
        }
        assert done.stderr.count(f"adapted ({NAME}): LlamaForCausalLM") == (not options), done.stderr
        assert "Gemma2ForCausalLM computes" not in done.stderr
    for kind in kinds:
        ours, torchs = (of[kind] for of in found.values())
        assert len(ours) == (8 if kind == "accumulated" else 14)
        assert ours == pytest.approx(torchs, rel=1e-4)
