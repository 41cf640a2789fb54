"""Splitting a captured model's layers over devices: layers, rules, cost tables, the DTensor run."""
