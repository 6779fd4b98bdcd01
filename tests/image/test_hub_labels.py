"""Labels of the hub's data sets are class numbers, in the order of the data set's classes."""

from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT

NO_CLASS = "expected one of the data set's 2 classes: remove the row"


def test_labels_are_the_data_sets_classes_and_others_are_refused_where_the_column_is_used(
    run_in_image: RunInImage,
) -> None:
    done = run_in_image("run", "--quiet", "--backend", "gloo", "/s/hub_labels.py", docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['no', 'yes', 'yes']",
        f"DATA (train) row 3: column 'label' holds -1, {NO_CLASS}",
        "[['no', 'yes'], ['yes', 'yes']]",
        f"DATA (train) row 2: column 'ner_tags' holds -1, {NO_CLASS}",
        f"DATA (train) row 1: column 'ner_tags' holds -100, {NO_CLASS}",
        "['yes', 'no']",
    ]
