"""This is the public API of mothertongue_export; everything else may change."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mothertongue_export.exporter import export as export
    from mothertongue_export.parity import ParityReport as ParityReport
    from mothertongue_export.verification import Verification as Verification
    from mothertongue_export.verification import verify as verify

__version__ = "0.1.0"

# Loaded when first asked for: the command line needs none of them, nor onnx, to print its help.
HOMES = {
    "ParityReport": "parity",
    "Verification": "verification",
    "export": "exporter",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'mothertongue_export' has no attribute {name!r}")
    return getattr(import_module(f"mothertongue_export.{HOMES[name]}"), name)
