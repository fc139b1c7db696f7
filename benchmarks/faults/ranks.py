"""Family g: several ranks that do not train one model, simulated in one process."""

import torch
from torch import nn

from faults.fault import fault, sound
from faults.loss import count
from faults.subject import CLIP_NORM, ZooRun
from faults.text import ROWS

TWO = sound(ranks=2)
TWO_BY_TWO = sound(ranks=2, accumulation=2)
AGREEMENT = "replicas"


def without_reduction(run, is_left_out):
    """Leave some tensors out of the all-reduce; `is_left_out(name, copies)`."""
    reduce = run.reduce
    run.reduce = lambda name, copies: None if is_left_out(name, copies) else reduce(name, copies)


@fault("ddp_no_sync_leak", AGREEMENT, sound=TWO)
def g1_one_bucket_never_reduced(run):
    without_reduction(run, lambda name, copies: name.startswith("blocks.0"))


@fault("megatron#1446", AGREEMENT, sound=TWO)
def g2_norms_never_reduced(run):
    without_reduction(run, lambda name, copies: name.endswith("norm"))


@fault("megatron#5916", AGREEMENT, sound=TWO)
def g3_clipped_by_the_norm_of_a_shard(run):
    def clip(model):
        mine = list(model.parameters())[:: 1 + run.replicas.index(model)]
        norm = torch.stack([parameter.grad.norm() for parameter in mine]).norm()
        for parameter in model.parameters():
            parameter.grad *= (CLIP_NORM / (norm + 1e-6)).clamp(max=1)

    run.clip = clip


@fault("transformers#37932", "rank data", sound=TWO)
def g4_all_ranks_read_the_same_rows(run):
    part_of_rank = run.part_of_rank
    run.part_of_rank = lambda batch, rank: part_of_rank(batch, 0)


@fault("no broadcast at the start", AGREEMENT, sound=TWO)
def g5_ranks_start_apart(run):
    other = ZooRun(seed=8)
    run.replicas[1].load_state_dict(other.model.state_dict())


@fault("gradients summed over ranks", "gradient handed over", sound=TWO)
def g6_sum_in_place_of_the_mean(run):
    def reduce(name, copies):
        total = torch.stack([copy.grad for copy in copies]).sum(0)
        for copy in copies:
            copy.grad.copy_(total)

    run.reduce = reduce
    run.clip = lambda model: nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM * 2)


@fault("skyrl#1886", AGREEMENT, sound=TWO)
def g7_gradients_that_are_not_contiguous_stay_local(run):
    for model in run.replicas:
        model.blocks[0].q.weight.register_hook(lambda g: g.T.contiguous().T)
    without_reduction(run, lambda name, copies: name == "blocks.0.q.weight")


@fault("lightning#20350", "gradient handed over", sound=TWO)
def g8_mean_of_the_means_of_ranks(run):
    def accumulate(step, rank):
        parts = run.micro_batches(step, rank)
        for part in parts:
            (run.loss(run.replicas[rank], part) / len(parts)).backward()

    targets = run.targets

    def uneven(batch):
        found = targets(batch)
        found[0, 4:] = -100
        return found

    run.targets = uneven
    run.accumulate = accumulate


@fault("transformer-engine#441", AGREEMENT, sound=TWO)
def g9_rank_1_does_not_move_its_norms(run):
    for group in run.optimizer[1].param_groups[1:]:
        group["lr"] = 0.0
    step = run.optimizer[1].step

    def stepped():
        for group in run.optimizer[1].param_groups[1:]:
            group["lr"] = 0.0
        step()

    run.optimizer[1].step = stepped


@fault("torchtitan#2388", AGREEMENT, sound=sound(ranks=2, mixture=True))
def g10_router_gradient_never_reduced(run):
    reduce = run.reduce

    def partial(name, copies):
        if any(copy.grad is None for copy in copies):
            for copy in copies:
                copy.grad = torch.zeros_like(copy) if copy.grad is None else copy.grad
        if "router" not in name:
            reduce(name, copies)

    run.reduce = partial


@fault("build-nanogpt#30", AGREEMENT, sound=TWO_BY_TWO)
def g11_only_the_last_micro_batch_is_reduced(run):
    """The flag that lets gradients travel is set after the forward pass that reads it."""
    kept = {}

    def accumulate(step, rank):
        parts = run.micro_batches(step, rank)
        total = sum(count(part) for other in range(run.ranks) for part in run.micro_batches(step, other))
        for number, part in enumerate(parts):
            (run.loss(run.replicas[rank], part) * count(part) * run.ranks / total).backward()
            if number < len(parts) - 1:
                kept[rank] = {p: p.grad.clone() for p in run.replicas[rank].parameters()}
                run.replicas[rank].zero_grad()

    all_reduce = run.all_reduce

    def reduced():
        all_reduce()
        for local in kept.values():
            for parameter, gradient in local.items():
                parameter.grad += gradient

    run.accumulate, run.all_reduce = accumulate, reduced


@fault("a part of the rows on two ranks", "rank data", sound=TWO)
def g12_ranks_share_a_row(run):
    run.part_of_rank = lambda batch, rank: {
        name: value[: ROWS // 2] if rank == 0 else value[ROWS // 2 - 1 : -1] for name, value in batch.items()
    }


@fault("sdc_flip on one rank", AGREEMENT, sound=TWO)
def g13_a_bit_flips_on_one_rank(run):
    step = run.optimizer[1].step

    def stepped():
        step()
        with torch.no_grad():
            weight = run.replicas[1].blocks[0].up.weight.view(-1)
            weight[5] *= 2**8

    run.optimizer[1].step = stepped


@fault("a schedule a rank", AGREEMENT, sound=TWO)
def g14_rank_1_is_one_step_late_in_the_schedule(run):
    step = run.optimizer[1].step
    calls = []

    def stepped():
        for group in run.optimizer[1].param_groups:
            group["lr"] = run.learning_rate(len(calls) - 1)
        calls.append(1)
        step()

    run.optimizer[1].step = stepped


@fault("numpy seeds of workers: pytorch#5059", "rank data", sound=TWO)
def g15_ranks_read_the_same_rows_in_another_order(run):
    part_of_rank = run.part_of_rank
    run.part_of_rank = lambda batch, rank: {
        name: value.flip(0) if rank else value for name, value in part_of_rank(batch, 0).items()
    }


@fault("expert_none_skip", AGREEMENT, sound=sound(ranks=2, mixture=True))
def g17_an_expert_is_skipped_where_no_token_visits_it(run):
    """It has no gradient on that rank, and AdamW passes over it there; the other rank moves it."""
    accumulate, reduce = run.accumulate, run.reduce

    def visited_by_rank_0_only(step, rank):
        accumulate(step, rank)
        if rank == 1:
            for parameter in run.replicas[1].blocks[0].mixture.experts[0].parameters():
                parameter.grad = None

    def skipping(name, copies):
        unvisited = [copy for copy in copies if copy.grad is None]
        reduce(name, copies)
        for copy in unvisited:
            copy.grad = None

    run.accumulate, run.reduce = visited_by_rank_0_only, skipping
