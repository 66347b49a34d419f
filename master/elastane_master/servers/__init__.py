"""The edge: gRPC servicers translate messages into events and effects into messages."""
