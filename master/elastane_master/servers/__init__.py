"""gRPC servicers: translation of messages into events, and of effects into messages."""
