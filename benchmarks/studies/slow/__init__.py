"""Whether the cause of a slow run is named first: public threads, and made situations."""
