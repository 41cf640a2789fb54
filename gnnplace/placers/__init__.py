"""The placers room."""
