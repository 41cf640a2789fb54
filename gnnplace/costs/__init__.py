"""What ops, messages and steps take on devices that are not here: numbers alone, no torch."""
