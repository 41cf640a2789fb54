"""How each kind of call can be split over a mesh, one family of calls a file."""
