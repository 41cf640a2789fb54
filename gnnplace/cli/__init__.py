"""The command line: one file a command, with its parser, its call and what it prints."""
