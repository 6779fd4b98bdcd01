"""`run` balances the ranks of a Trainer script: each step has the same rows, each rank as many tokens."""

import re
from pathlib import Path

import pytest

from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT
from tests.image.train_runs import ONE_THREAD

NAME = "balanced-ranks"
TOKENS_OF = """
from datasets import Dataset
from cpu_train_stack.speed.balanced_ranks import tokens_of

masks = [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1], []]
data = Dataset.from_dict({"attention_mask": masks, "input_ids": [[0] * 4] * 5, "label": [0] * 5})
assert tokens_of(data) == [2, 1, 0, 3, 0]
assert tokens_of(data.select([3, 0])) == [3, 2]
assert tokens_of(data.with_format("torch")) == [2, 1, 0, 3, 0]
assert tokens_of(data.remove_columns("attention_mask")) == [4] * 5
assert tokens_of(data.with_transform(lambda rows: rows)) is None
assert tokens_of(data.select_columns("label")) is None
assert tokens_of(data.select([])) == []
assert tokens_of(list(data)) is None
for other in ([1, 2], [[[1, 2], [3]]] * 2, [[[1]]] * 2, [[1], None], [[1, None]], [["a"], ["b", "c"]]):
    assert tokens_of(Dataset.from_dict({"input_ids": other})) is None, other
long = Dataset.from_dict({"input_ids": [[7] * (row % 5) for row in range(25_000)]})
assert tokens_of(long) == [row % 5 for row in range(25_000)]

# The sampler has the order of accelerate's, which other versions use: a resumed run must find it.
from accelerate.data_loader import SeedableRandomSampler
from cpu_train_stack.speed.balanced_ranks import Shuffled

theirs, ours = SeedableRandomSampler(range(5000), data_seed=3), Shuffled(5000, 3)
for epoch in (0, 1, 7):
    if epoch > 1:
        theirs.set_epoch(epoch), ours.set_epoch(epoch)
    assert list(ours) == list(theirs), epoch
print("all right")
"""


def steps(run_in_image: RunInImage, *options: str) -> tuple[list[tuple[int, int]], list[float], str]:
    """The tokens that ranks 0 and 1 had in each step, the losses of the steps, and stderr."""
    done = run_in_image(
        *("launch", "--nproc-per-node=2", "--", "run", *options, "/s/balanced.py"),
        env=ONE_THREAD,
        docker_args=MOUNT,
    )
    assert done.returncode == 0, done.stderr
    tokens = [
        [int(number) for number in re.findall(rf"rank {rank}: (\d+) tokens", done.stdout)] for rank in (0, 1)
    ]
    losses = re.search(r"losses (.*)", done.stdout)
    assert losses is not None, done.stdout
    return list(zip(*tokens, strict=True)), [float(loss) for loss in losses[1].split()], done.stderr


def test_each_step_has_the_same_loss_and_each_rank_as_many_tokens(run_in_image: RunInImage) -> None:
    balanced, losses, stderr = steps(run_in_image)
    before, losses_before, _stderr = steps(run_in_image, "--no-adapt", NAME)
    assert stderr.count(f"adapted ({NAME})") == 1
    assert [sum(step) for step in balanced] == [sum(step) for step in before]
    assert losses == pytest.approx(losses_before, abs=2e-5)
    assert len(set(losses)) > 8

    # 44 rows are five steps and an incomplete one, filled up with rows of the first. Both stay as they are.
    full = [step for number, step in enumerate(balanced) if number % 6 not in {0, 5}]
    assert all(abs(first - second) <= 12 for first, second in full), full
    assert any(abs(first - second) >= 24 for first, second in before)


def test_tokens_are_counted_in_columns_and_rows_are_shuffled_as_by_accelerate(
    run_in_image: RunInImage, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "tokens.py").write_text(TOKENS_OF)
    done = run_in_image("run", "/s/tokens.py", env=ONE_THREAD, docker_args=("--volume", f"{tmp_path}:/s:ro"))
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
