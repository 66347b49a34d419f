"""The control plane: decisions (pure), store (Redis or Valkey), servers (gRPC), command line."""
