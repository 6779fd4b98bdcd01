"""Prints evaluate's scores, by the image's own metrics, beside those of scikit-learn, scipy and torchmetrics."""

from __future__ import annotations

import json
import random
from typing import Any

import evaluate
import scipy.stats
import sklearn.metrics
from torchmetrics.functional.text import squad


def flat(scores: dict[str, Any]) -> dict[str, float]:
    """The scores of each type as `TYPE score`."""
    own = {f"{kind} {name}": value for kind, found in scores.items() if isinstance(found, dict)
           for name, value in found.items()}  # fmt: skip
    return {**own, **{name: value for name, value in scores.items() if not isinstance(value, dict)}}


TAGS = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O", "O"]]
TAGGED = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O", "B-LOC"]]
rng = random.Random(3)
references = [rng.randint(0, 1) for _ in range(97)]
predictions = [one if rng.random() < 0.8 else 1 - one for one in references]
values = [rng.random() for _ in references]
words = ["the", "a", "cat", "dog", "sat", "on", "mat,", "paris!", "rome"]
texts = [" ".join(rng.sample(words, 3)) for _ in references]
accepted = [[" ".join(rng.sample(words, rng.randint(2, 4))) for _ in range(2)] for _ in references]
answers = [
    {"id": str(index), "answers": {"text": one, "answer_start": [0, 0]}} for index, one in enumerate(accepted)
]
found = [{"id": str(index), "prediction_text": text} for index, text in enumerate(texts)]
labels = {"predictions": predictions, "references": references}

f1 = sklearn.metrics.f1_score(references, predictions)
accuracy = sklearn.metrics.accuracy_score(references, predictions)
in_batches = evaluate.load("glue", "mrpc")
for start in range(0, len(references), 10):
    in_batches.add_batch(predictions=predictions[start : start + 10], references=references[start : start + 10])
pairs = {
    "accuracy": (evaluate.load("accuracy").compute(**labels), {"accuracy": accuracy}),
    "f1": (evaluate.load("f1").compute(**labels), {"f1": f1}),
    "macro": (
        evaluate.load("f1").compute(**labels, average="macro"),
        {"f1": sklearn.metrics.f1_score(references, predictions, average="macro")},
    ),
    "combined": (evaluate.combine(["accuracy", "f1"]).compute(**labels), {"accuracy": accuracy, "f1": f1}),
    "mrpc": (in_batches.compute(), {"accuracy": accuracy, "f1": f1}),
    "cola": (
        evaluate.load("glue", "cola").compute(**labels),
        {"matthews_correlation": sklearn.metrics.matthews_corrcoef(references, predictions)},
    ),
    "stsb": (
        evaluate.load("glue", "stsb").compute(predictions=values, references=references),
        {
            "pearson": scipy.stats.pearsonr(values, references)[0],
            "spearmanr": scipy.stats.spearmanr(values, references)[0],
        },
    ),
    "mse": (
        evaluate.load("mse").compute(predictions=values, references=references),
        {"mse": sklearn.metrics.mean_squared_error(references, values)},
    ),
    # What seqeval 1.2.2 computes for these tags.
    "seqeval": (
        flat(
            evaluate.load("evaluate-metric/seqeval").compute(
                predictions=TAGGED, references=TAGS, scheme="IOB2", zero_division=0
            )
        ),
        {
            "LOC precision": 1 / 3,
            "LOC recall": 1.0,
            "LOC f1": 0.5,
            "LOC number": 1,
            "PER precision": 1.0,
            "PER recall": 0.5,
            "PER f1": 2 / 3,
            "PER number": 2,
            "overall_precision": 0.5,
            "overall_recall": 2 / 3,
            "overall_f1": 4 / 7,
            "overall_accuracy": 5 / 7,
        },
    ),
    "squad": (
        evaluate.load("squad").compute(predictions=found, references=answers),
        {name: float(value) for name, value in squad(found, answers).items()},
    ),
}
numbers = {"predictions": values, "references": [rng.random() for _ in values]}
three = {"predictions": [rng.randint(0, 2) for _ in values], "references": [rng.randint(0, 2) for _ in values]}
wanted, chosen = three["references"], three["predictions"]
blank: list[str] = []
unanswered = [
    {**one, "answers": {"text": blank, "answer_start": []}} if index % 3 == 0 else one
    for index, one in enumerate(answers)
]
guesses = [{**one, "no_answer_probability": index % 3 == 0} for index, one in enumerate(found)]
pairs.update(
    {
        "precision": (
            evaluate.load("precision").compute(**three, average="macro", zero_division=0),
            {"precision": sklearn.metrics.precision_score(wanted, chosen, average="macro", zero_division=0)},
        ),
        "recall of 0": (
            evaluate.load("recall").compute(**labels, pos_label=0),
            {"recall": sklearn.metrics.recall_score(references, predictions, pos_label=0)},
        ),
        "matthews": (
            evaluate.load("matthews_correlation").compute(**three),
            {"matthews_correlation": sklearn.metrics.matthews_corrcoef(wanted, chosen)},
        ),
        "pearsonr": (
            evaluate.load("pearsonr").compute(**numbers, return_pvalue=True),
            dict(zip(("pearsonr", "p-value"), scipy.stats.pearsonr(numbers["references"], values), strict=True)),
        ),
        "spearmanr": (
            evaluate.load("spearmanr").compute(**numbers),
            {"spearmanr": scipy.stats.spearmanr(numbers["references"], values)[0]},
        ),
        "roc_auc": (
            evaluate.load("roc_auc").compute(references=references, prediction_scores=values),
            {"roc_auc": sklearn.metrics.roc_auc_score(references, values)},
        ),
        "mae": (
            evaluate.load("mae").compute(**numbers),
            {"mae": sklearn.metrics.mean_absolute_error(numbers["references"], values)},
        ),
        "exact_match": (
            evaluate.load("exact_match").compute(predictions=["A b.", "c"], references=["a b", "d"],
                                                 ignore_case=True, ignore_punctuation=True),
            {"exact_match": 0.5},
        ),
        # The example of evaluate's documentation.
        "bleu": (
            evaluate.load("bleu").compute(
                predictions=["hello there general kenobi", "foo bar foobar"],
                references=[["hello there general kenobi", "hello there !"], ["foo bar foobar"]],
            )
            | {"precisions": 1.0},
            {"bleu": 1.0, "precisions": 1.0, "brevity_penalty": 1.0, "length_ratio": 7 / 6,
             "translation_length": 7, "reference_length": 6},
        ),
        # Every third question has no answer, and is known to have none.
        "squad_v2": (
            {name: value for name, value in evaluate.load("squad_v2").compute(
                predictions=guesses, references=unanswered, no_answer_threshold=0.5).items() if "NoAns" in name},
            {"NoAns_exact": 100.0, "NoAns_f1": 100.0, "NoAns_total": 33},
        ),
    }
)  # fmt: skip
# Several processes compute a metric together in files that have its name.
assert [evaluate.load(name).name for name in ("precision", "recall")] == ["precision", "recall"]
print(json.dumps({name: [dict(ours), dict(theirs)] for name, (ours, theirs) in pairs.items()}), flush=True)
evaluate.load("glue", "sst3")
