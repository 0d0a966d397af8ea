"""A warm-up that says something, as frameworks do while they are imported."""


def warm() -> str:
    """Prepare nothing."""
    print("importing a lot", flush=True)
    return "nothing"
