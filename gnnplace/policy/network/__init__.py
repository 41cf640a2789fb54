"""The policy's networks: features, graph encoder, decoder, and the model that holds them."""
