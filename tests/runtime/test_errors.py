from mothertongue import errors


def test_every_error_has_an_exit_code_and_one_base() -> None:
    found = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.MothertongueError)
    }
    assert found == {
        "MothertongueError": 2,
        "RecipeError": 2,
        "DataError": 2,
        "CheckpointError": 2,
        "BundleError": 2,
        "CheckFailed": 1,
    }
