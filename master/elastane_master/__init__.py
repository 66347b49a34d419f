"""The control plane: decisions (pure), store (Redis), servers (gRPC), command line."""
