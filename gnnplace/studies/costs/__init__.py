"""Predictions from cost tables against published steps."""
