"""`generate`: a decoder that was trained here says what it has learned, from its folder and as an adapter."""

import json
import shutil
from pathlib import Path

import pytest

from tests.containers import RunInImage, run, works
from tests.image.train_runs import HERE, Runs, run_alone

HOMES = {"ada": "paris", "ben": "oslo"}
PROMPTS = [f"where does {name} live?" for name in HOMES]
ANSWERS = [f"in {home}." for home in HOMES.values()]
CHATS = [
    [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
]
LEARN = (
    *("--train_file=/output/chat.jsonl", "--save_strategy=no", "--eval_strategy=no", "--logging_strategy=no"),
    *("--per_device_train_batch_size=2", "--num_train_epochs=40", "--learning_rate=0.01"),
)
ADAPTER = ("--use_peft", "--lora_target_modules=all-linear")
# "ended": of a model whose texts end with another token than an answer of the template, and whose tokenizer
# returns token_type_ids, which the model refuses.
TRAINED = {"trained": (), "adapter": ADAPTER, "ended": (), "ended-adapter": ADAPTER}
DRAWS = ("--temperature=1", "--max_new_tokens=12")
MISTAKES = {
    "no folder": (["/output/none", "x"], "model folder '/output/none' does not exist"),
    "encoder": (["/output/bert", "x"], "expected a language model"),
    "no text": (["/output/random", ""], "PROMPT: found an empty text"),
    "length": (["/output/random", "x", "--max_new_tokens", "0"], "--max_new_tokens"),
    "system": (["/output/random", "x", "--raw", "--system", "y"], "--system needs a chat template"),
}


@pytest.fixture(scope="module")
def folder(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mounted as /output: random models, and those of TRAINED."""
    made = tmp_path_factory.mktemp("generate")
    made.chmod(0o777)
    (made / "chat.jsonl").write_text("\n".join(json.dumps({"messages": messages}) for messages in CHATS * 2))
    (made / "prompts.txt").write_text("\n\n".join(PROMPTS))
    words = " ".join(message["content"] for messages in CHATS for message in messages)
    make = ("python", "/tests/tiny_model.py", "/output/bert", words, "/output/random")
    works(run(image, *make, docker_args=(f"--volume={made}:/output", f"--volume={HERE}:/tests:ro")))
    base = made / "base"
    shutil.copytree(made / "random", base)
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        text = (base / name).read_text().replace('"<|end|>"', '"<|begin|>"')
        (base / name).write_text(text.replace('"eos_token_id": 1', '"eos_token_id": 0'))
    tokenizer = json.loads((base / "tokenizer_config.json").read_text())
    tokenizer["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (base / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    lines = {
        name: [
            f"--model_name_or_path=/output/{'base' if 'ended' in name else 'random'}",
            *(f"--output_dir=/output/{name}", *LEARN, *flags),
        ]
        for name, flags in TRAINED.items()
    }
    made_by = run_alone(image, made, made, lines)
    assert {name: one["code"] for name, one in made_by.items()} == dict.fromkeys(TRAINED, 0), made_by
    return made


@pytest.fixture(scope="module")
def said(image: str, folder: Path) -> Runs:
    """What `generate` said, in one process because imports take seconds."""
    lines = {name: [f"/output/{name}", *PROMPTS, "--json"] for name in TRAINED}
    lines["random"] = ["/output/random", *PROMPTS, "--json", "--max_new_tokens=8"]
    for name, seed in (("draw", 1), ("same draw", 1), ("other draw", 2)):
        lines[name] = ["/output/random", *PROMPTS, "--json", *DRAWS, f"--seed={seed}"]
    lines |= {f"one of {name}": [f"/output/{name}", PROMPTS[0]] for name in ("trained", "adapter")}
    lines |= {name: words for name, (words, _) in MISTAKES.items()}
    return run_alone(image, folder, folder, {name: ["generate", *words] for name, words in lines.items()})


def answers(said: Runs, name: str) -> list[str]:
    assert said[name]["code"] == 0, said[name]
    documents = [json.loads(line) for line in said[name]["stdout"].splitlines()]
    assert [document["prompt"] for document in documents] == PROMPTS
    assert all(document["seconds"] > 0 and document["tokens"] > 0 for document in documents)
    return [document["completion"] for document in documents]


@pytest.mark.parametrize("name", TRAINED)
def test_what_was_learned_is_said(said: Runs, name: str) -> None:
    assert answers(said, name) == ANSWERS


def test_an_answer_ends_where_the_template_ends_it_if_texts_end_with_another_token(folder: Path) -> None:
    assert json.loads((folder / "ended" / "generation_config.json").read_text())["eos_token_id"] == [0, 1]
    assert not (folder / "ended-adapter" / "generation_config.json").exists()


def test_what_was_not_learned_is_not_said(said: Runs) -> None:
    assert answers(said, "random") != ANSWERS


def test_an_answer_is_printed_below_its_prompt(run_in_image: RunInImage, folder: Path, said: Runs) -> None:
    shell = "entrypoint generate /output/trained < /output/prompts.txt"
    done = run_in_image("sh", "-c", shell, docker_args=(f"--volume={folder}:/output",))
    assert works(done) == "".join(
        f"> {prompt}\n{answer}\n" for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
    )
    for name in ("one of trained", "one of adapter"):
        assert said[name]["stdout"] == "in paris.\n", said[name]
    # peft reads a deprecated attribute of transformers 5
    assert "FutureWarning" not in "".join(one["stderr"] for one in said.values())


def test_draws_depend_on_the_seed_alone(said: Runs) -> None:
    assert answers(said, "draw") == answers(said, "same draw") != answers(said, "other draw")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(said: Runs, name: str) -> None:
    assert said[name]["code"] == 2, said[name]
    assert MISTAKES[name][1] in said[name]["stderr"]
    assert "Traceback" not in said[name]["stderr"]


def test_two_ranks_are_refused(run_in_image: RunInImage, folder: Path) -> None:
    launch = ("launch", "--nproc-per-node=2", "--", "generate", "/output/random", "x")
    done = run_in_image(*launch, docker_args=(f"--volume={folder}:/output",))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "generate runs in one process, found 2" in done.stderr
    assert "Traceback" not in done.stderr
