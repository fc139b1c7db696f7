import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.torch.distributed_check import check_ranks

PROGRAM = """
import json, os, sys, torch
from torch import distributed, nn
from mothertongue_arbiter.torch.distributed_check import check_ranks

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

def answer(fault):
    torch.manual_seed(rank if fault == "weights" else 0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.LayerNorm(8), nn.Linear(8, 50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checks = []
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + (0 if fault == "rows" else rank))
        batch = torch.randint(50, (4, 16), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
        for name, parameter in model.named_parameters():
            if fault != "gradients" or not name.startswith("1."):
                distributed.all_reduce(parameter.grad)
        check = check_ranks(model, batch, optimizer)
        checks.append((str(check.verdict), check.evidence))
        optimizer.step()
        if fault == "moments":
            optimizer.state[model[0].weight]["exp_avg"].add_(rank)
    return checks

print(json.dumps({fault: answer(fault) for fault in ("", "weights", "gradients", "rows", "moments")}))
distributed.barrier()
sys.stdout.flush()
os._exit(0)  # gloo's own threads may abort a process that is taken down in order
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What two gloo processes say, each fault in turn; started once."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    started = [
        subprocess.Popen([*command, str(rank), str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], told
    first, second = (json.loads(out) for out, _ in told)
    assert first == second  # all ranks get the same answer
    return first


def test_ranks_that_agree_pass(answers):
    assert [verdict for verdict, _ in answers[""]] == ["PASS", "PASS"]
    assert "8 rows on one rank each" in answers[""][0][1]


@pytest.mark.parametrize(
    ("fault", "step", "said"),
    [
        ("weights", 0, "weights of rank 1 differ from those of rank 0: 0.weight"),
        ("gradients", 0, "gradients of rank 1 differ from those of rank 0: 1.weight, 1.bias"),
        ("rows", 0, "4 rows of rank 1 are also rows of rank 0"),
        ("moments", 1, "moments of rank 1 differ from those of rank 0: 0.weight/exp_avg"),
    ],
)
def test_ranks_that_differ_are_named(answers, fault, step, said):
    verdict, evidence = answers[fault][step]
    assert verdict == "FAIL"
    assert said in evidence


def test_without_processes_there_is_nothing_to_compare():
    with pytest.raises(ArbiterError, match="start the program with torchrun"):
        check_ranks(nn.Linear(2, 2), torch.ones(2, 2))
