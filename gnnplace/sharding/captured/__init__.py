"""A captured model's layers, as it calls them, and the cost tables of their splits."""
