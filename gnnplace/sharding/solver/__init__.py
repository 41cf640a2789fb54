"""The best strategy of cost tables, exactly, and all that no other beats in time and memory."""
