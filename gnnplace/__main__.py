"""``python -m gnnplace``: the command line, as ``gnnplace``."""

from gnnplace.cli.main import main

if __name__ == "__main__":
    main()
