"""The layers of a model as it is called: calls, their graph, channel groups, the mesh."""
