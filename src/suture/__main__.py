"""The command ``suture``, and ``python -m suture``: loads the command line, and can be interrupted while it loads."""

import sys


def main() -> int:
    """Run the command; the exit code."""
    try:
        from suture.cli.main import main as run
    except KeyboardInterrupt:
        print("suture: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
