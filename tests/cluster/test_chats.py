"""The steps of docs/train.md, from chats to a model that answers, with a small random model."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from tests import containers
from tests.cluster.conftest import inv
from tests.containers import works
from tooling.basis.paths import ROOT

HEADING = "### From chats to a model that answers"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
# A random model has more to learn than a pretrained one.
LONGER = ("--num_train_epochs=100", "--learning_rate=0.01", "--save_strategy=no", "--logging_strategy=no")


def steps() -> list[str]:
    """The chat and the commands of the page."""
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    section = page.partition(HEADING)[2].partition("\n#")[0]
    return [line.strip() for line in re.findall(r"^ {7}(.*)$", section, flags=re.MULTILINE)]


def run(command: str, instead: Mapping[str, str], *more: str) -> str:
    """The output of the page's command. `instead`: what replaces its words."""
    words = [instead.get(word, word) for word in shlex.split(command)]
    assert words[:2] == ["./inv", "up"]
    done = inv("up", "--name=chats", "--offline", *words[2:], *more)
    return works(done)


def test_the_model_gives_the_answer_of_the_chat(image: str, tmp_path: Path) -> None:
    chat, train, ask = steps()
    chats, output = tmp_path / "chats", tmp_path / "output"
    for folder in (chats, output):
        folder.mkdir()
        folder.chmod(0o777)
    tests = ("--volume", f"{ROOT / 'tests' / 'image'}:/tests:ro", "--volume", f"{chats}:/chats")
    words = ("/chats/encoder", "Where does Ada live? In Paris. Ben Oslo.", "/chats/random")
    works(containers.run(image, "python", "/tests/tiny_model.py", *words, docker_args=tests))
    other = chat.replace("Ada", "Ben").replace("Paris", "Oslo")
    (chats / "train.jsonl").write_text("\n".join([chat, other] * 2))
    instead = {MODEL: "/data/random", "chats": str(chats), "output": str(output)}
    run(train, instead, *LONGER)
    assert (output / "report.html").is_file()
    assert "node-0 | In Paris.\n" in run(ask, instead)
