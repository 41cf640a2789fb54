"""Refinement: passes over a finished placement that decide every unit again."""
