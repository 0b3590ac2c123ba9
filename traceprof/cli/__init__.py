"""The command line: the only place that parses options, prints and exits."""


def main() -> None:
    """Run the command line."""
