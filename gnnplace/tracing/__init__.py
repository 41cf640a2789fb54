"""The tracing room."""
