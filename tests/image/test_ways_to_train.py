"""Two ranks, and accumulation, have the losses, gradients and weights of one rank, whoever computes the loss."""

import pytest

from tests.containers import RunInImage
from tooling.checks import ranks
from tooling.checks.ranks import WayRow

# A selection: ./inv dev ranks trains in all ways.
MODULES = ("heads", "own", "adapters")
EQUAL = (
    "BERT, two classes",
    "ModernBERT, hidden words",
    "Llama, other numbers of labels",
    "Llama, label smoothing",
    "Mixtral, router's loss",
    "T5",
    "a wrapper of BERT",
    "a wrapper of Llama",
    "a wrapper of a module that refuses the count",
    "a wrapper that refuses the count in its own way",
    "a wrapper that adds a mean",
    "a compiled model",
    "own mean",
    "own division",
    "own division by a whole number",
    "own loss that adds a mean to BERT's",
    "a copy of Trainer's method",
    "loss_is_scaled_for_ga",
    "own training_step",
    "training_step of transformers 4.45",
    "training_step of transformers 4.27",
    "training_step of transformers 4.57",
    "a training_step of transformers 4.45 in the object",
    "a training_step of transformers 4.45 in Trainer",
    "a method replaced in the object",
    "compute_loss_func, a mean",
    "compute_loss_func, both",
    "AdaLoRA",
    "LoRA of BERT and its head",
)
# The script reads the number of ranks or steps: the numbers are right here, but `run` cannot know it.
WARNED = {"own loss times ranks": "num_processes", "own loss by steps": "gradient_accumulation_steps"}


@pytest.fixture(scope="module")
def rows(image: str) -> dict[str, WayRow]:
    return {row.way: row for row in ranks.compare(image, MODULES, (*EQUAL, *WARNED))}


@pytest.mark.parametrize("way", [*EQUAL, *WARNED])
def test_two_ranks_and_accumulation_train_as_one_rank_does(rows: dict[str, WayRow], way: str) -> None:
    row = rows[way]
    assert not row.errors
    assert all(difference <= ranks.TOLERANCE for difference in row.differences.values()), row
    assert [WARNED.get(way, "") in line for line in row.warnings] == [True] * (way in WARNED)


def test_a_wrapper_of_a_language_model_has_the_loss_of_the_model(rows: dict[str, WayRow]) -> None:
    """Trainer itself counts one label too many in each row."""
    assert rows["a wrapper of Llama"].loss == pytest.approx(rows["Llama, other numbers of labels"].loss)


def test_the_warning_is_one_line_if_the_last_update_has_fewer_steps(run_in_image: RunInImage) -> None:
    mount = f"--volume={ranks.SCRIPTS}:/ways:ro"
    done = run_in_image("run", "/ways/uneven.py", env={"OMP_NUM_THREADS": "1"}, docker_args=(mount,))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(ranks.WARNING) == 1, done.stderr
