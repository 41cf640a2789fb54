"""The formats room."""
