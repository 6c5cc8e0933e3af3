"""Networks of a config are equal whenever they are made, and are not taken for one's own."""

from __future__ import annotations

from toys import point_suite, small_agent

from adaptax.experiment.provenance import own_networks


def test_the_networks_of_a_config_are_on_record_as_none(entry):
    suite = point_suite(entry)
    one, other = small_agent(entry, suite), small_agent(entry, suite)
    assert own_networks(one) is None
    assert one.networks == other.networks
    assert one == other or not one.traceable, "its programs would be compiled again"
