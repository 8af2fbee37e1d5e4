"""The gRPC face: the public Danube clients, and common gRPC tools, on our own HTTP/2 core. Loaded when first used."""
