"""Decoders of text priced from their sizes alone: tables of given plans, by framework."""
