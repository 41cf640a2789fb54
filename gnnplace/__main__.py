"""``python -m gnnplace``: the command line, as ``gnnplace``."""

from gnnplace.cli import run_and_exit

if __name__ == "__main__":
    run_and_exit()
