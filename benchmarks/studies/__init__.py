"""Papers and experiments worth keeping; only the verbs and the command line import them."""
