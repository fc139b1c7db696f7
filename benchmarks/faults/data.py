"""Family d: what is learned is not what the author believes: labels, masks, documents, packing, padding."""

import torch

from faults.fault import fault, sound, with_targets
from faults.loss import sum_of_cross_entropy
from faults.model import TOKENS, causal_mask
from faults.text import END_OF_TEXT, FIRST_LETTER, PADDING, ROWS, held_out_rows, train_rows

PACKING = "packing independence"


def with_ids(run, change):
    """Let the program read changed token ids, with the labels that follow from them."""
    batch = run.batch

    def changed(step):
        found = batch(step)
        read = {"input_ids": change(found["input_ids"].clone()), "documents": found["documents"]}
        return read | {"targets": run.targets(read)}

    run.batch = changed


@fault("transformers#47394", "labels")
def d1_double_shift(run):
    def cross_entropy(model, batch):
        logits, targets = run.forward(model, batch)[:, :-1], batch["targets"][:, 1:]
        return sum_of_cross_entropy(logits, targets) / (targets >= 0).sum()

    run.cross_entropy = cross_entropy


@fault("labels not shifted", "labels")
def d2_learns_to_copy(run):
    batch = run.batch
    run.batch = lambda step: (found := batch(step)) | {"targets": found["input_ids"].clone()}


@fault("d3_mask_off_by_one_leak", "causality")
def d3_mask_off_by_one(run):
    def leaking(documents):
        ahead = torch.ones(documents.shape[1], documents.shape[1], dtype=torch.bool).tril(1)
        return ahead & (documents[:, :, None] == documents[:, None, :])[:, None]

    run.model.operations.mask = leaking


@fault("trl#6357", "labels")
def d4_end_of_text_masked(run):
    with_targets(run, lambda targets: targets.masked_fill(targets == END_OF_TEXT, -100))


@fault("trl#1230", "isolated documents")
def d5_attention_crosses_documents(run):
    run.model.operations.mask = lambda documents: causal_mask(torch.zeros_like(documents))


@fault("functionary#265", PACKING, sound=sound(learned_positions=True))
def d6_positions_run_on_in_packed_documents(run):
    run.model.operations.positions = lambda documents: torch.arange(documents.shape[1]).expand_as(documents)


@fault("pad_attended", "padding independence", sound=sound(padding="left"))
def d7_left_padding_is_attended(run):
    run.model.operations.mask = lambda documents: causal_mask(torch.zeros_like(documents))


@fault("padding learned", "labels", sound=sound(padding="right"))
def d8_padding_is_learned(run):
    batch = run.batch

    def padded(step):
        found = batch(step)
        following = found["input_ids"].roll(-1, 1)
        return found | {"targets": torch.where(following == PADDING, PADDING, found["targets"])}

    run.batch = padded


@fault("chat template without its mask", "labels", sound=sound(chat=True))
def d9_prompt_is_learned(run):
    batch = run.batch

    def learned(step):
        found = batch(step)
        return found | {"targets": type(run)().targets(found)}

    run.batch = learned


@fault("val_in_train: parameter-golf#2127", "held-out overlap")
def d10_held_out_rows_in_the_training_text(run):
    run.eval_batches = lambda index: run.collate(*(part[ROWS * index :][:ROWS] for part in train_rows()))


@fault("marin#2700", "held-out overlap")
def d11_split_after_the_shuffle(run):
    """One row of each batch is a held-out one."""
    batch = run.batch
    ids, documents = held_out_rows()

    def mixed(step):
        found = batch(step)
        changed = {"input_ids": found["input_ids"].clone(), "documents": found["documents"]}
        same = (documents == found["documents"][0]).all(1).nonzero()[0]  # cut where the replaced row was
        changed["input_ids"][0] = ids[same]
        return changed | {"targets": run.targets(changed)}

    run.batch = mixed


@fault("a loader that is made again each step", "repetition")
def d12_the_same_batch_each_step(run):
    batch = run.batch
    run.batch = lambda step: batch(0)


@fault("labels shuffled apart from inputs", "labels")
def d13_labels_of_another_row(run):
    with_targets(run, lambda targets: targets.roll(1, 0))


@fault("special_split", "documents", sound=sound(as_lists=True))
def d14_end_of_text_written_as_letters(run):
    """The tokenizer reads the special token as plain text, here as one letter."""
    with_ids(run, lambda ids: torch.where(ids == END_OF_TEXT, FIRST_LETTER + 3, ids))


@fault("ids stored in too few bits", "documents", sound=sound(as_lists=True))
def d15_ids_wrap_around(run):
    with_ids(run, lambda ids: ids % 32)


@fault("labels cross documents", "labels")
def d16_end_of_text_predicts_the_next_document(run):
    batch = run.batch

    def crossing(step):
        found = batch(step)
        targets = torch.full_like(found["input_ids"], -100)
        targets[:, :-1] = found["input_ids"][:, 1:]
        return found | {"targets": targets}

    run.batch = crossing


@fault("mnemosyne#1988", "documents", sound=sound(as_lists=True))
def d17_rows_copied_with_the_wrong_stride(run):
    with_ids(run, lambda ids: torch.as_strided(ids.repeat(2, 1), ids.shape, (1, 1)).clone())


@fault("the tail of each row is cut", "documents", sound=sound(as_lists=True))
def d18_last_document_of_a_row_dropped(run):
    def change(ids):
        ids[:, TOKENS // 2 :] = ids[:, : TOKENS // 2]
        return ids

    with_ids(run, change)


@fault("tinyllama#77", "repetition")
def d19_half_of_each_batch_is_the_other_half(run):
    with_ids(run, lambda ids: ids[: ROWS // 2].repeat(2, 1))


@fault("an ignored index that is a token", "labels")
def d20_a_letter_is_the_ignored_index(run):
    letter = int(run.batch(0)["targets"][0, 1])

    def cross_entropy(model, batch):
        targets = batch["targets"].masked_fill(batch["targets"] == letter, -100)
        return sum_of_cross_entropy(run.forward(model, batch), targets) / (targets >= 0).sum()

    run.cross_entropy = cross_entropy


@fault("bos_missing", "documents", sound=sound(as_lists=True))
def d21_first_token_of_each_document_replaced(run):
    def change(ids):
        ids[:, 0] = FIRST_LETTER
        return ids

    with_ids(run, change)


@fault("a loss mask one position late", "labels", sound=sound(chat=True))
def d23_answer_mask_one_position_late(run):
    with_targets(run, lambda targets: torch.where(targets.roll(1, 1) >= 0, targets, -100))
