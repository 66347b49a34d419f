"""Who may do what: TLS, tokens and their roles, quotas, and the gate every call passes.

tokens, policy, quotas   pure: tables and decisions
tls, store_access        files of certificates and passwords, read again when they change
gate                     the one place where a call is let in or refused
"""
