"""Runs placements and training steps on worker processes, checks their results and measures them.

A room of packages. Each package exports its names in its own `__init__.py`, from which all other
code imports; this file has no names. From top to bottom, each imports only from those below it:

* `planned`: joint plans, run in plain PyTorch in the order of their actions.
* `measuring`: runs that are timed and kept, and predictions beside them.
* `checking`: whether a run computes what one process does; a run walked without numbers.
* `training`: a placed step in the user's training loop (`gnnplace.compile`, Lightning).
* `device_maps`: placements as accelerate's device maps.
* `placed`: a placement as one source a device, run on workers.
* `workers`: processes under supervision, transports, hosts. `costs` uses it too, for measurements,
  so that it depends on none of the others.

The room never searches a placement or a plan; it runs what it is given.
"""
