"""How far predicted op and step times are from published ones, none of which they were fitted to."""
