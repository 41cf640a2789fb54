"""The joint plan, without torch: stages, meshes, recomputation, ZeRO, and the order of actions.

`docs/plan.md` says what is searched, how, and what is proven.
"""
