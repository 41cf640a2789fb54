"""The study of traversal orders by family of networks, after Wang et al. (2022)."""
