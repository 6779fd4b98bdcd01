"""`./inv demo --task sft` with a small random decoder, which three steps cannot teach anything."""

import json
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from tests import containers
from tests.containers import works
from tooling.basis.paths import ROOT
from tooling.cluster import demo, demo_answers, demo_chats, pretrained
from tooling.image.choice import Choice


def test_a_decoder_that_learned_nothing_is_asked_twice_and_fails(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "models"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    monkeypatch.setattr(demo_chats, "TRAINING", 3 * demo.SFT_BATCH_SIZE)
    monkeypatch.setattr(demo_chats, "HELD_OUT", 4)
    monkeypatch.setattr(demo_answers, "LONGEST_ANSWER", 8)
    train, held_out = demo_chats.write(tmp_path / "chats")
    volumes = ("--volume", f"{ROOT / 'tests' / 'image'}:/tests:ro", "--volume", f"{tmp_path / 'models'}:/models")
    argv = ("python", "/tests/tiny_model.py", "/models/encoder", train.read_text(), "/models/decoder")
    works(containers.run(image, *argv, docker_args=volumes))
    monkeypatch.setattr(pretrained, "smollm2", lambda: tmp_path / "models" / "decoder")
    monkeypatch.setitem(demo.FOLDERS, demo.SFT, tmp_path / "demo")
    with pytest.raises(Exit) as caught:
        demo.demo(Choice(), 2, 1, "ccl", "torchrun", demo.SFT)
    assert str(caught.value).startswith("the demo failed: "), str(caught.value)
    assert "right_answers went from 0.000 to 0.000, expected a rise of 0.3 or more" in str(caught.value)
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert (result["task"], result["world_size"], result["backend"], result["steps"]) == (
        "text-generation", 2, "ccl", 3,
    )  # fmt: skip
    assert [answer["question"] for answer in result["answers"]] == [question for question, _ in held_out]
    assert all(answer["before"] for answer in result["answers"])
    printed = capsys.readouterr().out
    assert "demo: failed" in printed
    assert "before, wrong" in printed
