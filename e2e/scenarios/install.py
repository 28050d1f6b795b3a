"""From nothing to a cluster that takes records."""

import time

from e2e.harness.scenario import Stage, scenario


@scenario("Installed from nothing", fresh=True)
def install(stage: Stage) -> None:
    """Chart, operator, the example's Cluster; then a short load, to see that Ready is true."""
    stage.penstock.remove()
    began = time.monotonic()
    stage.penstock.install(stage.images)
    stage.measure("operator available", time.monotonic() - began)
    began = time.monotonic()
    stage.penstock.create()
    stage.measure("Cluster Ready", time.monotonic() - began)
    with stage.workload() as load:
        load.started()
        stage.measure("first records acknowledged", time.monotonic() - began)
        load.goes_on()
