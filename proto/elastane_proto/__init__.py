"""The API: .proto files, the code generated from them, and helpers that masters, workers and tools share."""
