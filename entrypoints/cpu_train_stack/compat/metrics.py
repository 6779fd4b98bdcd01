"""Metrics as evaluate's Metric objects, with add, add_batch and compute. Imports evaluate and datasets."""

from __future__ import annotations

from typing import Any

import evaluate
from datasets import Features, Sequence, Value

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat import measures
from cpu_train_stack.train.scores import glue, squad


def _info(description: str, features: Any) -> Any:
    return evaluate.MetricInfo(
        description=description, citation="", features=features, inputs_description="", reference_urls=[]
    )


class Glue(evaluate.Metric):
    """The configuration is the name of the task."""

    def _info(self) -> Any:
        if self.config_name not in glue.TASKS:
            raise UsageError(
                f"evaluate.load('glue', {self.config_name!r}): expected one of {', '.join(glue.TASKS)}"
            )
        kind = Value("float32") if self.config_name == "stsb" else Value("int64")
        return _info("The scores of a task of GLUE.", Features({"predictions": kind, "references": kind}))

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return glue.scores(self.config_name, predictions, references)


class Squad(evaluate.Metric):
    """Predictions are matched to references by id."""

    def _info(self) -> Any:
        answers = {"text": Sequence(Value("string")), "answer_start": Sequence(Value("int32"))}
        return _info(
            "Exact match and F1 of SQuAD 1.1.",
            Features(
                {
                    "predictions": {"id": Value("string"), "prediction_text": Value("string")},
                    "references": {"id": Value("string"), "answers": answers},
                }
            ),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        texts = {one["id"]: one["prediction_text"] for one in predictions}
        found = [texts.get(one["id"], "") for one in references]
        return squad.scores(found, [list(one["answers"]["text"]) for one in references], both_empty=0.0)


class RocAuc(evaluate.Metric):
    """The area under the ROC curve; the configurations "multiclass" and "multilabel" have a score per class."""

    def _info(self) -> Any:
        several = self.config_name in ("multiclass", "multilabel")
        scores = Sequence(Value("float")) if several else Value("float")
        labels = Sequence(Value("int32")) if self.config_name == "multilabel" else Value("int32")
        features = Features({"references": labels, "prediction_scores": scores})
        return _info("The area under the ROC curve.", features)

    def _compute(self, references: Any, prediction_scores: Any, **options: Any) -> dict[str, Any]:
        from sklearn.metrics import roc_auc_score

        return {"roc_auc": roc_auc_score(references, prediction_scores, **options)}


class SquadV2(Squad):
    """Questions may have no answer: a prediction also has the probability of that."""

    def _info(self) -> Any:
        info = super()._info()
        info.features["predictions"]["no_answer_probability"] = Value("float32")
        return info

    def _compute(self, predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> dict[str, Any]:
        return squad.scores_v2(predictions, references, no_answer_threshold)


def _features(kind: str, config: str) -> Any:
    """The features of a metric of `measures`."""
    value = Value({measures.LABELS: "int32", measures.NUMBERS: "float"}.get(kind, "string"))
    is_list = kind == measures.TAGS or config in ("multilabel", "multilist")
    row = Sequence(value) if is_list else value
    pair = Features({"predictions": row, "references": row})
    if kind != measures.TEXTS:
        return pair
    return [Features({"predictions": value, "references": Sequence(value)}), pair]


def _metric(name: str) -> Any:
    kind, compute = measures.KINDS[name]

    class Measure(evaluate.Metric):
        def _info(self) -> Any:
            return _info(f"evaluate's {name}.", _features(kind, self.config_name))

        def _compute(self, **options: Any) -> Any:
            return compute(**options)

    Measure.__name__ = name  # evaluate names the files of several processes after it
    return Measure


METRICS = {
    **{name: _metric(name) for name in measures.KINDS},
    "glue": Glue,
    "roc_auc": RocAuc,
    "squad": Squad,
    "squad_v2": SquadV2,
}
