"""Checks of encoders without padding: losses and gradients are those with padding. A line for each that held."""

from __future__ import annotations

import copy
import itertools
from typing import Any
from unittest import mock

import torch
import trained
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from cpu_train_stack.operators import unpadded
from cpu_train_stack.speed import joining, no_padding

FAMILIES = ("Albert", "Bert", "Camembert", "DistilBert", "Electra", "Roberta", "XLMRoberta")
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "dim": 32,
    "embedding_size": 16,
    "num_hidden_layers": 2,
    "n_layers": 2,
    "num_attention_heads": 4,
    "n_heads": 4,
    "intermediate_size": 48,
    "hidden_dim": 48,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "initializer_range": 0.3,  # so that a wrong position or token type shows in the loss
    "pad_token_id": 1,
}
NO_DROPOUT = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"),
    *("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "qa_dropout"),
)
LENGTHS = torch.tensor([9, 1, 17, 4, 12])
WIDTH = 20

NOTES: list[str] = []
USE = joining.Use(NOTES.append)


def padded() -> Any:
    """Compute padding inside the block."""
    return mock.patch.object(unpadded, "layout_of", return_value=None)


def model(family: str = "Bert", head: str = HEADS[0], **changes: Any) -> Any:
    config = getattr(transformers, f"{family}Config")
    known = vars(config())  # an unknown name would be stored too
    values = {**SIZES, **dict.fromkeys(NO_DROPOUT, 0.0)}
    sizes = {name: value for name, value in values.items() if name in known}
    torch.manual_seed(1)
    made = getattr(transformers, f"{family}{head}")(config(**{**sizes, "num_labels": 3, **changes}))
    for weight in made.parameters():  # a new model has no biases
        if weight.dim() == 1:
            weight.data.add_(torch.randn_like(weight) * 0.1)
    return made


def batch(head: str = HEADS[0], family: str = "Bert", lengths: Any = LENGTHS, seed: int = 2) -> dict[str, Any]:
    torch.manual_seed(seed)
    mask = (torch.arange(WIDTH) < lengths[:, None]).long()
    ids = torch.randint(2, SIZES["vocab_size"], mask.shape) * mask + (1 - mask)
    labels = torch.randint(0, 3, mask.shape).masked_fill(mask == 0, -100)
    found = {"input_ids": ids, "attention_mask": mask, "labels": labels[:, 0] if head == HEADS[0] else labels}
    if family != "DistilBert":
        found["token_type_ids"] = torch.arange(WIDTH).expand_as(mask) % 2
    return found


def answers() -> dict[str, Any]:
    inputs = batch()
    del inputs["labels"]
    return {**inputs, "start_positions": LENGTHS // 2, "end_positions": LENGTHS - 1}


def compare(made: Any, inputs: dict[str, Any], left_out: bool = True) -> None:
    """The same loss and gradients as with padding, within ten times the effect of another order of rows."""
    with padded():
        loss, full = trained.gradients(made, inputs)
        order = torch.randperm(len(inputs["input_ids"]))
        _, permuted = trained.gradients(made, {name: value[order] for name, value in inputs.items()})
    before = USE.skipped
    other_loss, found = trained.gradients(made, inputs)
    assert (USE.skipped > before) is left_out, USE.skipped
    limit = max(10 * trained.distance(permuted, full), 5e-6)
    assert abs(other_loss - loss) <= 1e-5 * abs(loss), (other_loss, loss)
    assert trained.distance(found, full) <= limit, (trained.distance(found, full), limit)


def losses_and_gradients_of_all_families_are_those_with_padding() -> None:
    for family in FAMILIES:
        for head in HEADS:
            compare(model(family, head).train(), batch(head, family))


def attention_in_padded_groups_gives_the_same() -> None:
    with trained.in_groups():
        for family in FAMILIES:
            compare(model(family).train(), batch(family=family))


def losses_and_gradients_of_twenty_steps_are_those_with_padding() -> None:
    lengths = torch.randint(1, WIDTH - 2, (trained.STEPS, len(LENGTHS)))
    for family, head in zip(FAMILIES, itertools.cycle(HEADS)):
        before = USE.skipped
        batches = [batch(head, family, each, seed) for seed, each in enumerate(lengths)]
        trained.check_training(model(family, head).train(), batches, padded)
        assert USE.skipped - before == trained.STEPS * WIDTH * len(LENGTHS) - int(lengths.sum())


def positions_of_the_caller_are_kept() -> None:
    inputs = batch()
    positions = torch.arange(WIDTH).flip(0).expand_as(inputs["input_ids"])
    compare(model(), {**inputs, "position_ids": positions})
    without = {name: value for name, value in inputs.items() if name != "token_type_ids"}
    compare(model(), without)


def activation_checkpointing_of_both_kinds_gives_the_same_gradients() -> None:
    for reentrant in (False, True):
        made = model().train()
        made.gradient_checkpointing_enable({"use_reentrant": reentrant})
        compare(made, batch())


def dropout_of_recomputed_layers_is_the_same() -> None:
    made = model(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2).train()
    torch.manual_seed(3)
    _, expected = trained.gradients(made, batch())
    made.gradient_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(3)
    assert trained.distance(trained.gradients(made, batch())[1], expected) < 1e-5


def autocast_gives_the_same_within_the_rounding_of_bf16() -> None:
    made, inputs = model(initializer_range=0.1).train(), batch()
    exact = trained.gradients(made, inputs)[1]
    with torch.autocast("cpu", torch.bfloat16):
        found = trained.gradients(made, inputs)[1]
        with padded():
            full = trained.gradients(made, inputs)[1]
    assert USE.skipped
    assert trained.distance(found, exact) < 2 * trained.distance(full, exact)


def adapters_give_the_same_gradients() -> None:
    from peft import LoraConfig, get_peft_model

    made = get_peft_model(model(), LoraConfig("SEQ_CLS", r=4, target_modules=["query", "value"]))
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    compare(made.train(), batch())


def evaluation_gives_the_same_scores() -> None:
    for head in HEADS[:2]:
        made, inputs = model(head=head).eval(), batch(head)
        with torch.no_grad():
            found = made(**inputs).logits
            with padded():
                full = made(**inputs).logits
        is_real = inputs["attention_mask"].bool() if head != HEADS[0] else slice(None)
        assert torch.allclose(found[is_real], full[is_real], atol=1e-5)
        assert found.shape == full.shape


def masks_of_other_types_are_understood() -> None:
    inputs = batch()
    for dtype in (torch.bool, torch.float32, torch.int32):
        compare(model(), {**inputs, "attention_mask": inputs["attention_mask"].to(dtype)})


def rows_with_little_padding_are_computed_as_before_without_a_note() -> None:
    inputs = batch()
    NOTES.clear()
    for padding in (0, 5):  # of 100 positions
        mask = torch.ones_like(inputs["attention_mask"])
        mask[0, WIDTH - padding :] = 0
        compare(model(), {**inputs, "attention_mask": mask}, left_out=False)
    model()(inputs["input_ids"].clamp(min=2))  # without a mask and without padding
    assert not NOTES


def what_is_not_supported_is_computed_with_padding_and_a_note() -> None:
    inputs = batch()
    mask, ids = inputs["attention_mask"], inputs["input_ids"]
    hole = mask.clone()
    hole[0, 3] = 0
    empty = mask.clone()
    empty[1] = 0
    square = (mask[:, None, :] * mask[:, :, None]).bool() | torch.eye(WIDTH).bool()
    embeds = model().bert.embeddings.word_embeddings(ids).detach()
    tokens = batch(HEADS[1])
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "output_hidden_states": (model(), {**inputs, "output_hidden_states": True}),
        "output_attentions": (model(attn_implementation="eager"), {**inputs, "output_attentions": True}),
        "only on the right": (model(), {**inputs, "attention_mask": mask.flip(1)}),
        "only on the right ": (model(), {**inputs, "attention_mask": hole}),
        " only on the right": (model(), {**inputs, "attention_mask": empty}),
        "4 dimensions": (model(), {**inputs, "attention_mask": square[:, None]}),
        "inputs_embeds": (model(), {**inputs, "input_ids": None, "inputs_embeds": embeds}),
        "no attention_mask": (model(), {**inputs, "attention_mask": None}),
        "eager": (model(attn_implementation="eager"), inputs),
        "its head": (model(head="ForMultipleChoice"), {
            **{name: value[:, None] for name, value in inputs.items() if name != "labels"},
            "labels": torch.zeros(len(ids)).long(),
        }),
        "loss of question answering": (model(head="ForQuestionAnswering", num_labels=2), answers()),
        "other labels than -100": (model(head=HEADS[1]), {**tokens, "labels": tokens["labels"].clamp(min=0)}),
    }  # fmt: skip
    for reason, (made, given) in cases.items():
        NOTES.clear()
        loss, found = trained.gradients(made, given)
        assert len({*NOTES}) == 1, NOTES
        assert reason.strip() in NOTES[0], (reason, NOTES)
        with padded():
            expected = trained.gradients(made, given)
        assert loss == expected[0], reason
        assert torch.equal(found, expected[1]), reason


def values_that_cannot_be_read_are_computed_with_padding_without_a_note() -> None:
    made, inputs = model(), batch()
    with padded():
        expected = made(**inputs).logits
    NOTES.clear()
    before = USE.skipped
    torch.testing.assert_close(torch.compile(made, backend="eager")(**inputs).logits, expected)
    # Without a mask, because transformers reads its values.
    meta = copy.deepcopy(made).to("meta")(inputs["input_ids"].to("meta"))
    assert meta.logits.shape == expected.shape
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert made(mode.from_tensor(inputs["input_ids"])).logits.shape == expected.shape
    assert (USE.skipped, NOTES) == (before, [])


def question_answering_depends_on_padding_and_is_computed_with_it() -> None:
    made = model(head="ForQuestionAnswering", num_labels=2)
    compare(made, answers(), left_out=False)
    with mock.patch.object(USE, "answers", True):
        loss = float(made(**answers()).loss.detach())
    assert abs(float(made(**answers()).loss.detach()) - loss) > 1e-2


def answers_in_padding_have_no_probability_if_chosen() -> None:
    given = answers()
    for family in FAMILIES:
        made = model(family, "ForQuestionAnswering", num_labels=2).train()
        kept = {name: value for name, value in given.items() if name != "token_type_ids" or family != "DistilBert"}
        with mock.patch.object(USE, "answers", True):
            compare(made, kept)
            out = made(**kept)
        assert not made.qa_outputs._forward_hooks
        losses = [
            torch.nn.functional.cross_entropy(scores[row : row + 1, :length], kept[positions][row : row + 1])
            for scores, positions in ((out.start_logits, "start_positions"), (out.end_logits, "end_positions"))
            for row, length in enumerate(LENGTHS)
        ]
        assert torch.allclose(torch.stack(losses).mean(), out.loss, rtol=1e-5)


def scores_without_labels_are_those_with_padding_outside_of_train() -> None:
    inputs = batch(HEADS[1])
    del inputs["labels"]
    made, before = model(head=HEADS[1]), USE.skipped
    made(**inputs)
    assert USE.skipped == before
    assert any("without labels" in line for line in NOTES)


no_padding.install(USE)
for check in (
    losses_and_gradients_of_all_families_are_those_with_padding,
    losses_and_gradients_of_twenty_steps_are_those_with_padding,
    attention_in_padded_groups_gives_the_same,
    positions_of_the_caller_are_kept,
    activation_checkpointing_of_both_kinds_gives_the_same_gradients,
    dropout_of_recomputed_layers_is_the_same,
    autocast_gives_the_same_within_the_rounding_of_bf16,
    adapters_give_the_same_gradients,
    evaluation_gives_the_same_scores,
    masks_of_other_types_are_understood,
    rows_with_little_padding_are_computed_as_before_without_a_note,
    what_is_not_supported_is_computed_with_padding_and_a_note,
    values_that_cannot_be_read_are_computed_with_padding_without_a_note,
    question_answering_depends_on_padding_and_is_computed_with_it,
    answers_in_padding_have_no_probability_if_chosen,
    scores_without_labels_are_those_with_padding_outside_of_train,
):
    check()
    print(check.__name__, flush=True)
