"""What `train` imports before it reads the data."""

from tests import containers

# Prepares a job, then creates accelerate's data loader as two ranks would, and prints what was imported.
PREPARE = """
import sys
from cpu_train_stack.train.main import prepare
prepare(["--model_name_or_path", "x", "--train_file", "x.csv", "--output_dir", sys.argv[1]])
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
prepare_data_loader(DataLoader([1, 2, 3, 4]), num_processes=2, process_index=0, put_on_device=False)
print(*{"transformers.trainer", "datasets", "pandas", "scipy"} & {*sys.modules})
import datasets
"""


def test_train_starts_without_packages_that_it_does_not_use(image: str) -> None:
    printed = containers.works(containers.run(image, "python", "-c", PREPARE, "/tmp/output"))
    assert printed.split() == ["transformers.trainer"]
