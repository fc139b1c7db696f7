"""Where a run computes, and in which precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Keys of torch.cpu.get_capabilities() of which one must be true before bfloat16 products are fast on a CPU.
# Without them they are emulated: 12 times slower than float32 on an AVX2 machine, for nano.
NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """A device and the precision of its matrix products; weights and optimizer stay float32."""

    device: torch.device
    compute_dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.compute_dtype).removeprefix("torch.")

    @property
    def device_name(self) -> str:
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"CPU, {torch.get_num_threads()} threads"


def choose_arithmetic(wanted_dtype: str) -> Arithmetic:
    """Return the GPU, else the CPU, with `wanted_dtype` or, where the device would emulate that, float32."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if wanted_dtype == "bfloat16" and multiplies_bfloat16(device) else torch.float32
    return Arithmetic(device=device, compute_dtype=dtype)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether `device` has instructions for bfloat16 products."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(key, False) for key in NATIVE_BFLOAT16)
