"""The errors of Mothertongue: one class for each remedy.

MothertongueError
├── RecipeError       correct the recipe
├── DataError         correct or fetch the text, or the tokenizer made from it
├── CheckpointError   train again, or name another checkpoint
├── BundleError       copy or export the bundle again
└── CheckFailed       something was measured and is not good enough; nothing was shipped

A message says where, what was found, what was expected and what to do, on one line. The command line turns
these errors, and only these, into that line; a bug keeps its traceback.
"""


class MothertongueError(Exception):
    """Any failure that its reader can mend. Subclasses name the remedy."""

    exit_code = 2  # bad usage or bad input


class RecipeError(MothertongueError):
    """The recipe cannot be read, or asks for something impossible."""


class DataError(MothertongueError):
    """Text, a package of text, or a tokenizer is missing, empty or not what the reader needs."""


class CheckpointError(MothertongueError):
    """A checkpoint or run folder is missing, incomplete or belongs to another recipe."""


class BundleError(MothertongueError):
    """A bundle is missing, incomplete, altered, or made for another version."""


class CheckFailed(MothertongueError):
    """A gate was measured and missed: tokenizer fairness, audit, parity."""

    exit_code = 1
