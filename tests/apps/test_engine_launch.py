"""The reference driver's command line is one that the reference engine takes."""

import attrs
import pytest

from lunanexa_apps.engine.command_line import read_options
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import LaunchInput, LaunchPlan
from lunanexa_core.drivers.reference import REFERENCE
from lunanexa_core.ids import AssignmentId, DeploymentId, StartId
from lunanexa_core.southbound.documents import DesiredAssignment

BARE = EngineSpec(driver="reference", served_name="tiny", binary="/opt/lunanexa-engine")
FULL = attrs.evolve(BARE, slots=2, context_tokens=2048, arguments=("--itl-ms", "7.5", "--seed", "3"))


def launch(spec: EngineSpec, key: str | None) -> LaunchPlan:
    assignment = DesiredAssignment(
        assignment=AssignmentId("as_1"), generation=1, deployment=DeploymentId("de_1"), engine=spec, engine_key=key
    )
    plan = REFERENCE.launch(LaunchInput(start=StartId("start_7"), assignment=assignment, port=40123))
    assert isinstance(plan, LaunchPlan)
    return plan


@pytest.mark.parametrize("spec", [BARE, FULL], ids=["bare", "full"])
def test_the_engine_takes_what_the_driver_says(spec: EngineSpec) -> None:
    plan = launch(spec, "a-key-of-the-engine")
    options = read_options(plan.argv[1:], plan.environment, "0.0.0")
    assert (options.host, options.port) == ("127.0.0.1", 40123)
    assert options.engine.names == ("tiny", "start_7")
    assert options.engine.slots == spec.slots
    assert options.engine.api_key == "a-key-of-the-engine"


def test_each_of_its_options_arrives() -> None:
    plan = launch(FULL, None)
    engine = read_options(plan.argv[1:], plan.environment, "0.0.0").engine
    assert (engine.slots, engine.context_tokens, engine.itl_ms, engine.seed) == (2, 2048, 7.5, 3)
    assert engine.api_key is None
