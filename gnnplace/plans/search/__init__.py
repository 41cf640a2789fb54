"""The search for a joint plan, without torch: stages, meshes, recomputation, ZeRO, schedules."""
