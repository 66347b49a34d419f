"""Access control: TLS, tokens and their roles, quotas, and the gate that every call passes.

tokens, policy, quotas   pure: tables and decisions
tls, store_access        files of certificates and passwords, read again when they change
front, strangers, frames connections: what callers without a known token may consume
handshakes, tls_session  TLS of those connections
gate                     the one place where a call is admitted or refused
"""
