"""The policy room: the learned placer, from features to decoded placements; all placers by name."""
