"""This is the public API of mothertongue; everything else may change."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mothertongue.errors import BundleError as BundleError
from mothertongue.errors import CheckFailed as CheckFailed
from mothertongue.errors import CheckpointError as CheckpointError
from mothertongue.errors import DataError as DataError
from mothertongue.errors import MothertongueError as MothertongueError
from mothertongue.errors import RecipeError as RecipeError

if TYPE_CHECKING:
    from mothertongue.answer import Answer as Answer
    from mothertongue.answer import Completion as Completion
    from mothertongue.bundle import Manifest as Manifest
    from mothertongue.chat import Message as Message
    from mothertongue.conversation import Chat as Chat
    from mothertongue.generate import Token as Token
    from mothertongue.model import Model as Model
    from mothertongue.model import load as load
    from mothertongue.sampling import Sampling as Sampling

__version__ = "0.1.0"

# Loaded when first asked for: the command line needs none of them, nor numpy, to print its help.
HOMES = {
    "Answer": "answer",
    "Chat": "conversation",
    "Completion": "answer",
    "Manifest": "bundle",
    "Message": "chat",
    "Model": "model",
    "Sampling": "sampling",
    "Token": "generate",
    "load": "model",
}
__all__ = [
    *HOMES,
    "BundleError",
    "CheckFailed",
    "CheckpointError",
    "DataError",
    "MothertongueError",
    "RecipeError",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'mothertongue' has no attribute {name!r}")
    return getattr(import_module(f"mothertongue.{HOMES[name]}"), name)
