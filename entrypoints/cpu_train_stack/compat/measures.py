"""What the metrics of evaluate that need no classes of their own compute, with evaluate's results and options.

Each function is the `_compute` of the metric with its name. KINDS says what a row of the metric is.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from typing import Any, Callable

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.scores import entities, glue, texts

LABELS, NUMBERS, PAIRS, TEXTS, TAGS = "labels", "numbers", "pairs", "texts", "tags"


def _named(name: str, function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    return lambda predictions, references, **options: {name: function(predictions, references, **options)}


def _score(name: str) -> Callable[..., dict[str, Any]]:
    """Precision or recall."""

    def compute(predictions: Any, references: Any, **options: Any) -> Any:
        from sklearn import metrics

        score = getattr(metrics, f"{name}_score")(references, predictions, **options)
        return score if getattr(score, "size", 1) > 1 else float(score)

    return _named(name, compute)


def _of_sklearn(name: str, function: str, **defaults: Any) -> Callable[..., dict[str, Any]]:
    """A function of sklearn.metrics with its own options. `defaults`: where evaluate's differ."""

    def compute(predictions: Any, references: Any, **options: Any) -> Any:
        from sklearn import metrics

        return getattr(metrics, function)(references, predictions, **{**defaults, **options})

    return _named(name, compute)


def _correlation(name: str, probability: str) -> Callable[..., dict[str, float]]:
    """A function of scipy.stats. `probability`: evaluate's name of its p-value."""

    def compute(predictions: Any, references: Any, return_pvalue: bool = False) -> dict[str, float]:
        from scipy import stats

        value, of_chance = getattr(stats, name)(references, predictions)
        return {name: float(value), **({probability: float(of_chance)} if return_pvalue else {})}

    return compute


def mse(predictions: Any, references: Any, squared: bool = True, **options: Any) -> dict[str, Any]:
    from sklearn.metrics import mean_squared_error

    error = mean_squared_error(references, predictions, **options)
    return {"mse": error if squared else error**0.5}


def matthews_correlation(
    predictions: Any, references: Any, sample_weight: Any = None, average: str | None = None
) -> dict[str, Any]:
    import numpy
    from sklearn.metrics import matthews_corrcoef

    found, wanted = numpy.array(predictions), numpy.array(references)
    if found.ndim == 1:
        return {"matthews_correlation": float(matthews_corrcoef(wanted, found, sample_weight=sample_weight))}
    if average not in (None, "macro"):
        raise ValueError(f"average is {average!r}, expected 'macro' or None")
    columns = range(wanted.shape[1])
    each = [matthews_corrcoef(found[:, one], wanted[:, one], sample_weight=sample_weight) for one in columns]
    return {"matthews_correlation": numpy.mean(each) if average else each}


def smape(
    predictions: Any, references: Any, sample_weight: Any = None, multioutput: Any = "uniform_average"
) -> dict[str, Any]:
    import numpy

    found, wanted = numpy.asarray(predictions), numpy.asarray(references)
    sizes = [numpy.maximum(numpy.abs(one), numpy.finfo(numpy.float64).eps) for one in (wanted, found)]
    each = numpy.average(2 * numpy.abs(found - wanted) / sum(sizes), weights=sample_weight, axis=0)
    if isinstance(multioutput, str):
        return {"smape": each if multioutput == "raw_values" else numpy.average(each)}
    return {"smape": numpy.average(each, weights=multioutput)}


def mase(
    predictions: Any,
    references: Any,
    training: Any,
    periodicity: int = 1,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
) -> dict[str, Any]:
    import numpy
    from sklearn.metrics import mean_absolute_error

    naive = mean_absolute_error(training[periodicity:], training[:-periodicity], multioutput=multioutput)
    error = mean_absolute_error(references, predictions, sample_weight=sample_weight, multioutput=multioutput)
    return {"mase": error / numpy.maximum(naive, numpy.finfo(numpy.float64).eps)}


def r_squared(predictions: Any, references: Any) -> float:
    """Rounded, and without a name, as in evaluate."""
    import numpy

    found, wanted = numpy.array(predictions), numpy.array(references)
    rest, all_of_it = ((found - wanted) ** 2).sum(), ((wanted - wanted.mean()) ** 2).sum()
    return float(round(1 - rest / all_of_it, 3))


def exact_match(
    predictions: Any,
    references: Any,
    regexes_to_ignore: Any = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> dict[str, Any]:
    import numpy

    removed = (string.punctuation if ignore_punctuation else "") + (string.digits if ignore_numbers else "")

    def plain(text: str) -> str:
        for pattern in regexes_to_ignore or ():
            text = re.sub(pattern, "", text)
        return (text.lower() if ignore_case else text).translate(str.maketrans("", "", removed))

    return {"exact_match": numpy.mean([plain(one) == plain(other) for one, other in zip(predictions, references)])}


def wer(predictions: Any, references: Any, concatenate_texts: bool = False) -> float:
    del concatenate_texts  # the same number: errors and words are summed over all rows
    from torchmetrics.functional.text import word_error_rate

    return float(word_error_rate(list(predictions), list(references)))


def cer(predictions: Any, references: Any, concatenate_texts: bool = False) -> float:
    del concatenate_texts
    from torchmetrics.functional.text import char_error_rate

    return float(char_error_rate([one.strip() for one in predictions], [one.strip() for one in references]))


# The tokens of mteval-v13a, which evaluate's BLEU uses.
_13A = (
    *(("<skipped>", ""), ("-\n", ""), ("\n", " ")),
    *(("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")),
)
_13A_PATTERNS = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)


def _tokens(text: str) -> list[str]:
    for old, new in _13A:
        text = text.replace(old, new)
    text = f" {text} "
    for pattern, replacement in _13A_PATTERNS:
        text = pattern.sub(replacement, text)
    return text.split()


def _grams(words: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def bleu(
    predictions: Any, references: Any, tokenizer: Any = None, max_order: int = 4, smooth: bool = False
) -> dict[str, Any]:
    """BLEU of a corpus (Papineni 2002). The shortest reference counts for the length, as in evaluate."""
    tokens = tokenizer or _tokens
    found = [tokens(one) for one in predictions]
    wanted = [[tokens(text) for text in ([one] if isinstance(one, str) else one)] for one in references]
    matches, possible = [0] * max_order, [0] * max_order
    for words, accepted in zip(found, wanted):
        for order in range(max_order):
            most: Counter[tuple[str, ...]] = Counter()
            for other in accepted:
                most |= _grams(other, order + 1)
            matches[order] += sum((_grams(words, order + 1) & most).values())
            possible[order] += max(len(words) - order, 0)
    pairs = list(zip(matches, possible))
    precisions = [
        (hits + 1.0) / (all_of_them + 1.0) if smooth else hits / all_of_them if all_of_them else 0.0
        for hits, all_of_them in pairs
    ]
    mean = math.exp(sum(map(math.log, precisions)) / max_order) if min(precisions) > 0 else 0.0
    length, expected = sum(map(len, found)), sum(min(map(len, one)) for one in wanted)
    ratio = length / expected
    penalty = 1.0 if ratio > 1.0 else math.exp(1 - 1.0 / ratio) if ratio else 0.0
    return {
        "bleu": mean * penalty,
        "precisions": precisions,
        "brevity_penalty": penalty,
        "length_ratio": ratio,
        "translation_length": length,
        "reference_length": expected,
    }


def poseval(predictions: Any, references: Any, zero_division: Any = "warn") -> Any:
    from sklearn.metrics import classification_report

    tags = [[tag for row in rows for tag in row] for rows in (references, predictions)]
    return classification_report(*tags, output_dict=True, zero_division=zero_division)


def seqeval(
    predictions: Any,
    references: Any,
    suffix: bool = False,
    scheme: Any = None,  # of strict mode only
    mode: Any = None,
    sample_weight: Any = None,
    zero_division: Any = "warn",
) -> dict[str, Any]:
    """F1 of entities, as in CoNLL. Options that change the scores (strict mode) are refused."""
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


def rouge(
    predictions: Any,
    references: Any,
    rouge_types: Any = ("rouge1", "rouge2", "rougeL", "rougeLsum"),
    use_aggregator: bool = True,
    use_stemmer: bool = False,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """The plain mean over the rows. evaluate takes the median of the means of a thousand random samples."""
    found = texts.rouge(predictions, references, rouge_types, use_stemmer, tokenizer)
    return {name: sum(each) / len(each) if use_aggregator else each for name, each in found.items()}


def sacrebleu(predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
    accepted = [[one] if isinstance(one, str) else one for one in references]
    found = texts.bleu(predictions, accepted, **options)
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    return {name: getattr(found, name) for name in names}


# The kind of a metric's rows, and its function.
KINDS: dict[str, tuple[str, Callable[..., Any]]] = {
    "accuracy": (LABELS, _named("accuracy", glue.accuracy)),
    "f1": (LABELS, _named("f1", glue.f1)),
    "precision": (LABELS, _score("precision")),
    "recall": (LABELS, _score("recall")),
    "matthews_correlation": (LABELS, matthews_correlation),
    "confusion_matrix": (LABELS, _of_sklearn("confusion_matrix", "confusion_matrix")),
    "xnli": (LABELS, _named("accuracy", glue.accuracy)),
    "mse": (NUMBERS, mse),
    "mae": (NUMBERS, _of_sklearn("mae", "mean_absolute_error")),
    "mape": (NUMBERS, _of_sklearn("mape", "mean_absolute_percentage_error")),
    "smape": (NUMBERS, smape),
    "mase": (NUMBERS, mase),
    "brier_score": (NUMBERS, _of_sklearn("brier_score", "brier_score_loss", pos_label=1)),
    "pearsonr": (NUMBERS, _correlation("pearsonr", "p-value")),
    "spearmanr": (NUMBERS, _correlation("spearmanr", "spearmanr_pvalue")),
    "r_squared": (NUMBERS, r_squared),
    "exact_match": (PAIRS, exact_match),
    "wer": (PAIRS, wer),
    "cer": (PAIRS, cer),
    "bleu": (TEXTS, bleu),
    "rouge": (TEXTS, rouge),
    "sacrebleu": (TEXTS, sacrebleu),
    "poseval": (TAGS, poseval),
    "seqeval": (TAGS, seqeval),
}
