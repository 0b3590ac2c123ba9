"""``python -m traceprof``: the command line."""

from traceprof.cli import main

if __name__ == "__main__":
    main()
