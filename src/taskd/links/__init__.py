"""How processes talk: unix sockets inside a container, gRPC between nodes."""
