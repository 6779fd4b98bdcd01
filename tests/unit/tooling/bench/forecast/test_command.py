"""`./inv plan-cluster`: the counts of models, the table, the JSON, and bad options."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests import documents
from tooling.basis.figures import duration
from tooling.bench.forecast import command, models, request
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.request import ForecastRequest

REQUEST = ForecastRequest(model="bert-base", samples=400_000, single_node_samples_per_second=26)
ROUGH = replace(REQUEST, single_node_samples_per_second=0, cores=32, ghz=3, isa="avx512")


# As transformers counts them, without a task's head (BertModel(BertConfig()).num_parameters(), and so on).
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert-base", 109_482_240),
        ("google-bert/bert-base-cased", 108_310_272),
        ("bert-large-uncased", 335_141_888),
        ("distilbert-base", 66_362_880),
        ("sentence-transformers/all-MiniLM-L6-v2", 22_713_216),
        ("MiniLM", 22_713_216),
        ("roberta-base", 124_645_632),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("TinyLlama-1.1B", 1_100_048_384),
        ("Qwen2.5-0.5B", 494_032_768),
    ],
)
def test_a_known_model_has_the_parameters_that_transformers_counts(name: str, parameters: int) -> None:
    assert models.find(name).parameters == parameters


def test_the_work_is_six_operations_per_parameter_and_token_plus_attention() -> None:
    bert = models.find("bert-base")
    assert bert.products == 12 * (4 * 768**2 + 2 * 768 * 3072)
    assert bert.flops(128) == 128 * (6 * bert.products + 12 * 128 * 12 * 768)
    plain = models.find("110M")
    assert (plain.parameters, plain.quadratic) == (110_000_000, 0)
    assert plain.flops(1) == 6 * plain.products


NAMES = {"bert": "all-MiniLM-L6-v2", "distilbert": "distilbert-base-uncased", "llama": "TinyLlama-1.1B"}


def _config(kind: str, **changes: object) -> str:
    return json.dumps({**models.KNOWN[NAMES[kind]], "model_type": kind, **changes})


@pytest.mark.parametrize("kind", NAMES)
def test_a_config_file_gives_the_same_model_as_the_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(_config(kind))
    for path in (tmp_path, tmp_path / "config.json"):
        assert asdict(models.find(str(path))) == {**asdict(models.find(NAMES[kind])), "name": tmp_path.name}


NO_WIDTH = _config("bert", hidden_size=0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "expected a model's config.json"),
        ("[]", "an object"),
        ("{}", "'num_hidden_layers'"),
        (NO_WIDTH, "'hidden_size'"),
        (_config("bert", type_vocab_size="two"), "'type_vocab_size' is not an integer above 0"),
        (_config("llama", head_dim="wide"), "'head_dim' is not an integer above 0"),
        (_config("llama", num_local_experts=8), "has num_local_experts 8, which is not counted: pass the number"),
        (_config("llama", num_experts=128), "has num_experts 128"),
        (_config("llama", n_routed_experts=64), "has n_routed_experts 64"),
        (_config("bert", num_hidden_groups=1, embedding_size=128), "has num_hidden_groups 1"),
        (_config("bert", embedding_size=128), "has embedding_size 128"),
        (_config("bert", model_type="gpt_neox", rotary_pct=0.25), "gpt_neox has rotary_pct 0.25, which is not"),
        (_config("bert", model_type="modernbert", rope_parameters={"full": 1}), "modernbert has rope_parameters"),
        (_config("bert", model_type="phi", num_key_value_heads=32), "phi has num_key_value_heads 32"),
    ],
)
def test_a_bad_config_is_reported_in_one_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=said) as caught:
        models.find(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_config_without_experts_or_token_types_is_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(_config("bert", num_experts=0, embedding_size=384, type_vocab_size=None))
    assert models.find(str(tmp_path)).parameters == models.find("all-MiniLM-L6-v2").parameters - 2 * 384


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": None}], ids=["missing", "null"])
def test_a_config_of_an_old_llama_has_as_many_heads_for_keys_as_for_queries(
    changes: dict[str, object], tmp_path: Path
) -> None:
    old = {key: value for key, value in models.KNOWN["TinyLlama-1.1B"].items() if key != "num_key_value_heads"}
    (tmp_path / "config.json").write_text(json.dumps(old | changes))
    layers, width = 22, 2048
    more_keys_and_values = layers * 2 * width * (32 - 4) * 64
    assert models.find(str(tmp_path)).parameters == models.find("TinyLlama-1.1B").parameters + more_keys_and_values


def test_gated_layers_without_rms_norms_are_counted_as_those_of_llama(tmp_path: Path) -> None:
    stablelm = {key: value for key, value in models.KNOWN["TinyLlama-1.1B"].items() if key != "rms_norm_eps"}
    (tmp_path / "config.json").write_text(json.dumps({**stablelm, "hidden_act": "silu"}))
    assert models.find(str(tmp_path)).parameters == models.find("TinyLlama-1.1B").parameters


def test_gemma_shares_its_word_embeddings_unless_its_config_says_otherwise(tmp_path: Path) -> None:
    def count(**changes: object) -> int:
        (tmp_path / "config.json").write_text(_config("llama", **changes))
        return models.find(str(tmp_path)).parameters

    words = 32000 * 2048
    assert count() - count(model_type="gemma2") == words
    assert count(model_type="gemma", tie_word_embeddings=False) == count()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "9" * 400}, "expected 1000 to 1000000B parameters"),
        ({"model": "bert-bass"}, "did you mean 'bert-base'"),
        ({"model": "12"}, "'12', expected 1000 to"),
        ({"network": "fast"}, "expected the bit rate of a node's network card"),
        ({"network": "0g"}, "expected the bit rate"),
        ({"samples": 0}, "missing --samples: for example --model bert-base"),
        ({"model": "", "samples": 0}, "missing --model and --samples"),
        ({"samples": -1}, "--samples is -1, expected more than 0"),
        ({"epochs": float("nan")}, "--epochs is nan, expected more than 0"),
        (
            {"single_node_samples_per_second": float("inf")},
            "--single-node-samples-per-second is inf, expected 0 or more",
        ),
        ({"nodes": "0,2"}, "--nodes is 0,2, expected 1 or more each"),
        ({"single_node_samples_per_second": -1.0}, "--single-node-samples-per-second is -1, expected 0 or more"),
        ({"single_node_samples_per_second": 0.0, "cores": 32}, "the speed of one node is missing"),
        ({"samples": 10**15, "single_node_samples_per_second": 1e-308}, "too large or too small for a forecast"),
        ({"nodes": f"1,{10**32}"}, "too large or too small for a forecast"),
        ({"isa": "sse2"}, "--isa is 'sse2', expected one of avx2, avx512, avx512_bf16, amx"),
        ({"cores": 2, "ranks_per_node": 4}, "expected one or more for each of 4 ranks"),
        ({"efficiency": 1.5}, "--efficiency is 1.5"),
    ],
)
def test_bad_options_are_reported_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        request.make(replace(REQUEST, **changes))
    assert "\n" not in str(caught.value)


def test_numbers_of_nodes_are_separated_by_commas() -> None:
    assert request.node_counts("1,2,4") == (1, 2, 4)
    with pytest.raises(UsageError, match="expected numbers separated by commas"):
        request.node_counts("1-4")


def test_the_most_nodes_that_keep_the_efficiency_are_recommended() -> None:
    efficiencies = {row.nodes: row.efficiency.value for row in request.make(REQUEST).rows}
    assert efficiencies[2] > efficiencies[4] > efficiencies[8]
    between = (efficiencies[2] + efficiencies[4]) / 2
    assert request.make(replace(REQUEST, efficiency=between)).recommended == 2
    assert request.make(replace(REQUEST, efficiency=efficiencies[8])).recommended == 8
    assert request.make(replace(REQUEST, nodes="4,8", efficiency=0.99)).recommended is None


def test_the_advice_names_the_nodes_whose_error_bars_contain_the_efficiency() -> None:
    (_, two, *_) = request.make(REQUEST).rows
    assert two.efficiency.low < two.efficiency.value < two.efficiency.high
    for efficiency, is_named in ((two.efficiency.value, True), (0.01, False)):
        wanted = replace(REQUEST, nodes="1,2", efficiency=efficiency)
        said = command.advice(wanted, request.make(wanted))
        assert (f"error bars, 2 nodes may be above or below {efficiency:.0%}" in said) is is_named, said


def test_a_guess_from_cores_is_far_less_certain_than_a_measurement_and_has_a_warning() -> None:
    measured, rough = request.make(REQUEST), request.make(ROUGH)

    def width(plan: request.ForecastPlan) -> float:
        time = plan.rows[0].seconds
        return (time.high - time.low) / time.value

    assert width(measured) < 0.15
    assert width(rough) > 0.8
    assert any("one measured run" in warning for warning in rough.warnings)
    assert not measured.warnings
    # the Ice Lake guide's node trained 23.6 to 26.7 samples per second, which the guess for such a node includes
    speed = rough.inputs.samples_per_second
    assert speed.low < 23.6 < 26.7 < speed.high


def test_communication_overlaps_only_with_a_reserved_core() -> None:
    few = request.make(replace(REQUEST, cores=8)).inputs
    many = request.make(replace(REQUEST, cores=64)).inputs
    assert (few.compute_share.value, few.overlap.value) == (1, 0)
    assert (many.compute_share.value, many.overlap.value) == (63 / 64, 1)


@pytest.mark.parametrize("cores", [0, 64])
def test_the_speed_of_a_node_with_several_ranks_includes_the_reserved_cores(cores: int) -> None:
    known = request.make(replace(REQUEST, cores=cores, ranks_per_node=2)).inputs
    assert (known.compute_share, known.overlap.value) == (Estimate.exact(1), 1)


def test_a_guessed_speed_counts_the_cores_that_compute() -> None:
    one = request.make(replace(ROUGH, cores=64)).inputs
    two = request.make(replace(ROUGH, cores=64, ranks_per_node=2)).inputs
    assert two.samples_per_second.value / one.samples_per_second.value == pytest.approx(62 / 64)
    assert (one.compute_share.value, two.compute_share.value) == (63 / 64, 1)


def test_gradients_in_bf16_have_half_the_bytes() -> None:
    plain, half = request.make(REQUEST), request.make(replace(REQUEST, bf16_gradients=True))
    assert half.job.gradient_bytes * 2 == plain.job.gradient_bytes == 4 * 109_482_240
    assert half.rows[-1].seconds.value < plain.rows[-1].seconds.value


def test_the_document_and_the_table_agree(capsys: pytest.CaptureFixture[str]) -> None:
    command.run(REQUEST, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert documents.missing("plan-cluster", document) == []
    assert [row["nodes"] for row in document["rows"]] == [1, 2, 4, 8]
    assert [row["global_batch"] for row in document["rows"]] == [32, 64, 128, 256]
    assert document["recommended"] == 8
    assert document["parameters"] == 109_482_240
    for row in document["rows"]:
        assert row["seconds"]["low"] < row["seconds"]["value"] < row["seconds"]["high"]
        assert row["node_hours"] == pytest.approx(row["nodes"] * row["seconds"]["value"] / 3600, rel=1e-3)
    command.run(REQUEST, as_json=False)
    shown = capsys.readouterr().out
    for row in document["rows"]:
        assert duration(row["seconds"]["value"]) in shown
    assert "Recommended: 8 nodes" in shown
