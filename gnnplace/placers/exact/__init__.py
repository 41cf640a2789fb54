"""The exact placer: a CP-SAT model, a bound, and a tree over the devices of units."""

from gnnplace.placers.exact.placer import Exact as Exact
