"""What outlives its Cluster has no owner: tools that prune must not take it for their own.

Argo CD before 3.0 takes whatever has its Application's name in `app.kubernetes.io/instance`, and no
owner, for something that was removed from Git: it deletes it.
"""

import pytest
from support.operator_world import desired

from penstock.core.manifest.objects import DeletionPolicy
from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL, TRUST_LABEL
from penstock_operator.objects import broker_objects, broker_set, controller_objects
from penstock_operator.objects.security import authority_owner

INSTANCE = "app.kubernetes.io/instance"


@pytest.mark.parametrize("policy", DeletionPolicy)
def test_volumes_and_the_ca_are_of_no_instance(policy: DeletionPolicy) -> None:
    wish = desired(spec_deletion_policy=policy)
    (claim,) = broker_set(wish, 3)["spec"]["volumeClaimTemplates"]
    authority = authority_owner(wish, wish.names.authority)
    for labels in (claim["metadata"]["labels"], authority["metadata"]["labels"]):
        assert INSTANCE not in labels
        assert labels[CLUSTER_LABEL] == "flights", "by which it is found"
    assert claim["metadata"]["labels"][COMPONENT_LABEL] == "broker"
    assert authority["metadata"]["labels"][TRUST_LABEL] == "flights"


def test_all_else_has_an_owner() -> None:
    wish = desired()
    for each in (*controller_objects(wish), *broker_objects(wish), broker_set(wish, 3)):
        assert each["metadata"]["ownerReferences"], each["kind"]
        assert each["metadata"]["labels"][INSTANCE] == "flights"
