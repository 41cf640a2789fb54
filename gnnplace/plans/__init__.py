"""The joint plan: how a model is trained on a cluster; searched, checked, run.

`docs/plan.md` says what is searched, how, and what is proven.
"""
