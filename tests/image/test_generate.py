"""`generate`: a decoder that was trained here says what it has learned, from its folder and as an adapter."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import containers
from tests.containers import works

HERE = Path(__file__).parent
HOMES = {"ada": "paris", "ben": "oslo"}
CHATS = [
    [{"role": "user", "content": f"where does {name} live?"}, {"role": "assistant", "content": f"in {home}."}]
    for name, home in HOMES.items()
]
FLAGS = [
    "--train_file",
    "/work/chat.jsonl",
    "--save_strategy",
    "no",
    "--eval_strategy",
    "no",
    "--per_device_train_batch_size",
    "2",
]
ADAPTER = ["--use_peft", "--lora_target_modules", "all-linear"]
LEARN = [*FLAGS, "--num_train_epochs", "100", "--learning_rate", "0.01", "--logging_strategy", "no"]


def run(image: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    mounts = ["--volume", f"{folder}:/work", "--volume", f"{HERE}:/tests:ro"]
    return containers.run(image, *command, docker_args=mounts, timeout=300)


@pytest.fixture(scope="module")
def folder(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mounted as /work: a random decoder, the same after training, and an adapter on top of the random one."""
    made = tmp_path_factory.mktemp("generate")
    made.chmod(0o777)
    rows = [json.dumps({"messages": messages}) for messages in CHATS * 2]
    (made / "chat.jsonl").write_text("\n".join(rows))
    (made / "prompts.txt").write_text("".join(f"where does {name} live?\n\n" for name in HOMES))
    words = " ".join(message["content"] for messages in CHATS for message in messages)
    works(run(image, made, "python", "/tests/tiny_model.py", "/work/bert", words, "/work/random"))
    start = ["train", "--model_name_or_path", "/work/random", *LEARN, "--output_dir"]
    works(run(image, made, *start, "/work/trained"))
    works(run(image, made, *start, "/work/adapter", *ADAPTER))
    return made


def answers(image: str, folder: Path, model: str, *options: str) -> list[str]:
    command = shlex.join(["entrypoint", "generate", model, "--json", *options])
    output = works(run(image, folder, "sh", "-c", f"{command} < /work/prompts.txt"))
    documents = [json.loads(line) for line in output.splitlines()]
    assert [document["prompt"] for document in documents] == [f"where does {name} live?" for name in HOMES]
    assert all(document["seconds"] > 0 and document["tokens"] > 0 for document in documents)
    return [document["completion"] for document in documents]


@pytest.mark.parametrize("model", ["/work/trained", "/work/adapter"])
def test_what_was_learned_is_said(image: str, folder: Path, model: str) -> None:
    assert answers(image, folder, model) == [f"in {home}." for home in HOMES.values()]


def test_an_answer_ends_where_the_template_ends_it_if_texts_end_with_another_token(
    image: str, folder: Path
) -> None:
    base = folder / "base"
    shutil.copytree(folder / "random", base)
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        text = (base / name).read_text().replace('"<|end|>"', '"<|begin|>"')
        (base / name).write_text(text.replace('"eos_token_id": 1', '"eos_token_id": 0'))
    start = ["train", "--model_name_or_path", "/work/base", *LEARN, "--output_dir"]
    works(run(image, folder, *start, "/work/ended"))
    assert json.loads((folder / "ended" / "generation_config.json").read_text())["eos_token_id"] == [0, 1]
    works(run(image, folder, *start, "/work/ended-adapter", *ADAPTER))  # is saved without generation_config
    for model in ("/work/ended", "/work/ended-adapter"):
        assert answers(image, folder, model) == [f"in {home}." for home in HOMES.values()]


def test_what_was_not_learned_is_not_said(image: str, folder: Path) -> None:
    assert answers(image, folder, "/work/random", "--max_new_tokens", "8") != [
        f"in {home}." for home in HOMES.values()
    ]


def test_an_answer_is_printed_below_its_prompt(image: str, folder: Path) -> None:
    prompts = [f"where does {name} live?" for name in HOMES]
    done = run(image, folder, "generate", "/work/trained", *prompts)
    assert works(done) == "".join(f"> where does {name} live?\nin {home}.\n" for name, home in HOMES.items())
    assert works(run(image, folder, "generate", "/work/trained", prompts[0])) == "in paris.\n"
    adapted = run(image, folder, "generate", "/work/adapter", prompts[0])
    assert works(adapted) == "in paris.\n"
    assert "FutureWarning" not in adapted.stderr  # peft reads a deprecated attribute of transformers 5


def test_draws_depend_on_the_seed_alone(image: str, folder: Path) -> None:
    drawn = [
        answers(image, folder, "/work/random", "--temperature", "1", "--seed", seed, "--max_new_tokens", "12")
        for seed in ("1", "1", "2")
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(["generate", "/work/none", "x"], "model folder '/work/none' does not exist", id="no-folder"),
        pytest.param(["generate", "/work/bert", "x"], "expected a language model", id="encoder"),
        pytest.param(["generate", "/work/random", "", "--raw"], "the prompt has no tokens", id="no-tokens"),
        pytest.param(["generate", "/work/random", "x", "--max_new_tokens", "0"], "--max_new_tokens", id="length"),
        pytest.param(
            ["launch", "--nproc-per-node", "2", "--", "generate", "/work/random", "x"],
            "generate runs in one process, found 2",
            id="two-ranks",
        ),
        pytest.param(
            ["generate", "/work/random", "x", "--raw", "--system", "y"],
            "--system needs a chat template",
            id="system",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    image: str, folder: Path, command: list[str], expected: str
) -> None:
    done = run(image, folder, *command)
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
