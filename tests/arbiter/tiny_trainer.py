"""A real `transformers.Trainer` on a tiny Llama, with rows of different lengths."""

import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

PAD = 0


class MeanOfMeans(Trainer):
    """Each micro-batch is averaged by itself, as the Trainer did until 2024."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def collate(rows):
    width = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    labels = ids.masked_fill(ids == PAD, -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": (ids != PAD).long()}


def tiny_trainer(folder, kind=Trainer, *, steps=4, **arguments):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, pad_token_id=PAD, tie_word_embeddings=True,
    )  # fmt: skip
    numbers = random.Random(0)
    rows = [[numbers.randrange(2, 48) for _ in range(numbers.randrange(6, 14))] for _ in range(24)]
    given = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=steps,
        learning_rate=1e-3, weight_decay=0.1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, logging_strategy="no", **arguments,
    )  # fmt: skip
    return kind(model=LlamaForCausalLM(config), args=given, train_dataset=rows, data_collator=collate)
