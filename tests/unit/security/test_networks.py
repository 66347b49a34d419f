"""What counts as one address of strangers at the master's port."""

from __future__ import annotations

import pytest

from elastane_master.security.forwarding import network


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("2001:DB8:1:2:0:0:0:1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        # At a port that takes both: without the exception all of IPv4 would be one address.
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.8", "192.0.2.8"),
        # Of a socket without addresses, and what is none at all: as it is.
        ("", ""),
        ("unix", "unix"),
        ("300.1.2.3", "300.1.2.3"),
    ],
)
def test_of_ipv6_the_network_counts_and_of_ipv4_the_address(address: str, counted: str) -> None:
    assert network(address) == counted


def test_a_host_cannot_be_many_by_its_own_half_of_the_address() -> None:
    assert len({network(f"2001:db8::{part:x}") for part in range(1, 1000)}) == 1
    assert len({network(f"2001:db8:0:{part:x}::1") for part in range(1000)}) == 1000
    assert len({network(f"::ffff:10.0.{part // 256}.{part % 256}") for part in range(1000)}) == 1000
