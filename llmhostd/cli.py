"""What may a person type?"""


def main() -> None:
    """Run the command line."""
