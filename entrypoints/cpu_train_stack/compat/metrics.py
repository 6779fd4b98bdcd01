"""Metrics as evaluate's Metric objects, with add, add_batch and compute. Imports evaluate and datasets."""

from __future__ import annotations

from typing import Any

import evaluate
from datasets import Features, Sequence, Value

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat import measures
from cpu_train_stack.train.scores import entities, glue, squad, texts


def _info(description: str, features: Any) -> Any:
    return evaluate.MetricInfo(
        description=description, citation="", features=features, inputs_description="", reference_urls=[]
    )


class _Labels(evaluate.Metric):
    """One label per row, or a list of labels if the configuration is "multilabel"."""

    description = ""

    def _info(self) -> Any:
        kind = Sequence(Value("int32")) if self.config_name == "multilabel" else Value("int32")
        return _info(self.description, Features({"predictions": kind, "references": kind}))


class Accuracy(_Labels):
    description = "The share of predictions that equal the reference."

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
        return {"accuracy": glue.accuracy(predictions, references, **options)}


class F1(_Labels):
    description = "The harmonic mean of precision and recall."

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        return {"f1": glue.f1(predictions, references, **options)}


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


class MeanSquaredError(evaluate.Metric):
    """A number per row, or a list of numbers if the configuration is "multilist"."""

    def _info(self) -> Any:
        kind = Sequence(Value("float")) if self.config_name == "multilist" else Value("float")
        return _info("The mean squared error.", Features({"predictions": kind, "references": kind}))

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        from sklearn.metrics import mean_squared_error

        is_squared = options.pop("squared", True)
        error = mean_squared_error(references, predictions, **options)
        return {"mse": error if is_squared else error**0.5}


class Seqeval(evaluate.Metric):
    """A list of tags per row. Options that change the scores (strict mode) are refused."""

    def _info(self) -> Any:
        kind = Sequence(Value("string"))
        return _info("F1 of entities, as in CoNLL.", Features({"predictions": kind, "references": kind}))

    def _compute(
        self,
        predictions: Any,
        references: Any,
        suffix: bool = False,
        scheme: Any = None,  # of strict mode only
        mode: Any = None,
        sample_weight: Any = None,
        zero_division: Any = "warn",
    ) -> dict[str, Any]:
        del scheme
        if suffix or mode is not None or sample_weight is not None or zero_division not in ("warn", 0):
            raise UsageError(
                f"seqeval: found suffix={suffix}, mode={mode!r}, sample_weight={sample_weight}, zero_division="
                f"{zero_division!r}: the image's metric computes only the defaults, and zero_division=0"
            )
        pairs = [pair for rows in zip(predictions, references) for pair in zip(*rows)]
        overall = {
            **entities.scores(predictions, references),
            "accuracy": sum(one == other for one, other in pairs) / len(pairs) if pairs else 0.0,
        }
        return {
            **entities.scores_by_type(predictions, references),
            **{f"overall_{name}": value for name, value in overall.items()},
        }


class _Texts(evaluate.Metric):
    """A text per row, or a list of accepted texts."""

    description = ""

    def _info(self) -> Any:
        text = Value("string")
        several = Features({"predictions": text, "references": Sequence(text)})
        return _info(self.description, [several, Features({"predictions": text, "references": text})])


class Rouge(_Texts):
    """The plain mean over the rows. evaluate takes the median of the means of a thousand random samples."""

    description = "Shared words and sequences of words, with the package rouge_score."

    def _compute(
        self,
        predictions: Any,
        references: Any,
        rouge_types: Any = ("rouge1", "rouge2", "rougeL", "rougeLsum"),
        use_aggregator: bool = True,
        use_stemmer: bool = False,
        tokenizer: Any = None,
    ) -> dict[str, Any]:
        found = texts.rouge(predictions, references, rouge_types, use_stemmer, tokenizer)
        return {name: sum(each) / len(each) if use_aggregator else each for name, each in found.items()}


class Sacrebleu(_Texts):
    description = "BLEU as sacrebleu computes it."

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
        accepted = [[one] if isinstance(one, str) else one for one in references]
        found = texts.bleu(predictions, accepted, **options)
        names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
        return {name: getattr(found, name) for name in names}


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

    return Measure


METRICS = {
    **{name: _metric(name) for name in measures.KINDS},
    "roc_auc": RocAuc,
    "squad_v2": SquadV2,
    "accuracy": Accuracy,
    "f1": F1,
    "glue": Glue,
    "mse": MeanSquaredError,
    "rouge": Rouge,
    "sacrebleu": Sacrebleu,
    "seqeval": Seqeval,
    "squad": Squad,
}
