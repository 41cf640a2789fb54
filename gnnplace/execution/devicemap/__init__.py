"""Device maps: module names and their devices, as Hugging Face accelerate takes them."""
