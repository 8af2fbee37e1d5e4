"""The gRPC face, for the public Danube clients and common gRPC tools, on our own HTTP/2 core. Loaded on first use."""
