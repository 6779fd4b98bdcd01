"""YAML for readers of version 1.2."""

import yaml

from tooling.basis import yaml as yaml_text


def test_a_word_that_looks_like_a_number_stays_a_word() -> None:
    """1e-3 without quotes is a text for PyYAML and a number for Compose, which then refuses the command."""
    words = ["1e-3", "5E+2", "0o17", "12", "1.5", "train", ".5e1", "1e-3x"]
    text = yaml_text.render([{"command": words}])
    assert [line[2:] for line in text.splitlines()[1:]] == [
        *("'1e-3'", "'5E+2'", "'0o17'", "'12'", "'1.5'", "train", "'.5e1'", "1e-3x")
    ]
    assert yaml.safe_load(text) == {"command": words}


def test_a_word_with_underscores_between_digits_stays_a_word() -> None:
    words = ["0_9", "0o1_7", "1_0e3", "0_8e1", "1_0", "08_1.5", "0x_f", "1.5_0", "1e1_0"]
    text = yaml_text.render([words])
    assert text.splitlines() == [f"- '{word}'" for word in words]
    assert yaml_text.render([["a_1", "_1", "1_a"]]).splitlines() == ["- a_1", "- _1", "- 1_a"]


def test_a_word_that_kubectl_reads_as_a_boolean_or_a_number_stays_a_word() -> None:
    words = ["y", "Y", "n", "N", "yes", "off", "0X1F", "-0x1f", "0B11", "+0O17"]
    text = yaml_text.render([{"command": words, "env": {"n": "y"}, "flag": True}])
    assert text.splitlines() == [
        "command:",
        *(f"- '{word}'" for word in words),
        "env:",
        "  'n': 'y'",
        "flag: true",
    ]
    assert yaml.safe_load(text)["command"] == words
