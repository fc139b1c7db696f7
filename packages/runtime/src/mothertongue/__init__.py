"""This is the public API of mothertongue; everything else may change."""

from mothertongue.errors import BundleError as BundleError
from mothertongue.errors import CheckFailed as CheckFailed
from mothertongue.errors import CheckpointError as CheckpointError
from mothertongue.errors import DataError as DataError
from mothertongue.errors import MothertongueError as MothertongueError
from mothertongue.errors import RecipeError as RecipeError

__version__ = "0.1.0"
