"""Access control: TLS, tokens and their roles, quotas, strangers at the port.

Nothing here knows rpcs or jobs: `servers.gate` admits or refuses calls by what is decided here.

tokens, policy, quotas   pure: tables and decisions
tls, store_access        files of certificates and passwords, read again when they change
front, strangers, frames connections: what callers without a known token may consume
handshakes, tls_session  TLS of those connections
"""
