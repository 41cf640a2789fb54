"""Published runs of thousands of plans, priced by framework from a decoder's sizes."""
