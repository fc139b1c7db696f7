import pytest
import torch

from mothertongue_trainer.arithmetic import choose_arithmetic


@pytest.mark.parametrize(
    ("capabilities", "wanted", "chosen"),
    [
        ({"avx512_bf16": True}, "bfloat16", torch.bfloat16),
        ({"avx512_bf16": False, "avx2": True}, "bfloat16", torch.float32),
        ({}, "bfloat16", torch.float32),
        ({"amx_bf16": True}, "float32", torch.float32),
    ],
)
def test_bfloat16_is_used_where_the_processor_has_it(
    capabilities: dict[str, bool], wanted: str, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    arithmetic = choose_arithmetic(wanted)
    assert arithmetic.compute_dtype == chosen
    assert arithmetic.device == torch.device("cpu")
    assert arithmetic.device_name.startswith("CPU")
