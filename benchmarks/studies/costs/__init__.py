"""How far predicted times of ops and steps are from published ones."""
