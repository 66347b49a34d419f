"""The API: .proto files, what is generated from them, and the flat form of contexts."""
