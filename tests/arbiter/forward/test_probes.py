from dataclasses import replace

import torch
from zoo import ZooRun, causal_mask

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.forward import probes


def test_a_sound_model_passes_all_probes(exact):
    subject = exact(ZooRun())
    for probe in (probes.causality, probes.independent_rows, probes.isolated_documents):
        assert probe(subject).verdict == Verdict.PASS


def test_looking_ahead_fails_and_the_first_position_is_named(exact):
    run = ZooRun()
    run.model.operations.mask = lambda documents: torch.ones(1, 1, 14, 14, dtype=torch.bool)
    check = probes.causality(exact(run))
    assert check.verdict == Verdict.FAIL
    assert check.evidence.startswith("position 0 changes")


def test_looking_into_another_document_fails_only_that_probe(exact):
    run = ZooRun()
    run.model.operations.mask = lambda documents: causal_mask(torch.zeros_like(documents))
    subject = exact(run)
    assert probes.isolated_documents(subject).verdict == Verdict.FAIL
    assert probes.causality(subject).verdict == Verdict.PASS


def test_a_kernel_that_is_right_only_in_the_first_row_fails(exact):
    run = ZooRun()
    run.model.operations.block_out = lambda x: torch.cat([x[:1], x[1:] * 1.001])
    check = probes.independent_rows(exact(run))
    assert check.verdict == Verdict.FAIL
    assert "whole batch" in check.evidence


def test_a_model_that_ignores_its_tokens_shows_nothing(exact):
    run = ZooRun()
    run.model.operations.embed = lambda ids, weight: weight[torch.zeros_like(ids)]
    assert probes.causality(exact(run)).verdict == Verdict.INCONCLUSIVE


def test_probes_leave_the_modes_of_the_modules(exact):
    run = ZooRun()
    run.model.blocks[0].eval()
    probes.independent_rows(exact(run))
    assert [block.training for block in run.model.blocks] == [False, True]


def test_rows_that_are_mixed_are_not_called_a_causal_mask(exact):
    run = ZooRun()
    forward = run.forward
    run.forward = lambda model, batch: forward(model, batch) + 1e-3 * forward(model, batch).mean((0, 1))
    mixed = exact(run)
    assert "mixes positions" in probes.causality(mixed).cause  # the mean is over positions, too

    def over_rows(model, batch):
        logits = forward(model, batch)
        others = logits.sum(0, keepdim=True) - logits
        return logits + 1e-3 * others.mean(1, keepdim=True)

    run.forward = over_rows
    check = probes.causality(exact(run))
    assert check.verdict == Verdict.FAIL
    assert check.cause.startswith("an operation that mixes the rows of a batch")


def test_a_cut_inside_the_padding_proves_nothing_and_the_others_count(exact):
    run = ZooRun()
    batch = run.batch(0)
    ids = batch["input_ids"].clone()
    ids[:, 9:] = 0
    run.batch = lambda step: batch | {"input_ids": ids}
    run.declared = replace(run.declared, pad_token=0)
    assert probes.causality(exact(run)).verdict == Verdict.PASS
