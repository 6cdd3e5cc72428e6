"""From an assignment to an order for the process host, through its driver."""

from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.drivers.driver import LaunchInput, LaunchPlan, LaunchRefusal
from lunanexa_core.drivers.specification import LOOPBACK, EngineAddress, adopted_address
from lunanexa_core.ids import StartId
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_ports.ids import IdSource
from lunanexa_ports.processes import LaunchOrder, Processes

_TAIL_CHARACTERS = 10
_TRIAL_PORT = 1


def new_start_id(number: int, ids: IdSource) -> StartId:
    """``number`` makes it unique on this node for good; the random tail where a store was lost and begun anew."""
    return StartId(f"start_{number}_{ids.new('start')[-_TAIL_CHARACTERS:]}")


def find_address(assignment: DesiredAssignment, processes: Processes) -> EngineAddress | LaunchRefusal:
    """Where the next start of ``assignment`` answers (a fresh loopback port for an engine of ours), or why
    there can be none."""
    driver = DRIVERS.get(assignment.engine.driver)
    if driver is None:
        return LaunchRefusal.UNKNOWN_DRIVER
    adopted = adopted_address(assignment.engine)
    if adopted is not None:
        return adopted
    trial = driver.launch(LaunchInput(start=StartId("start_trial"), assignment=assignment, port=_TRIAL_PORT))
    if isinstance(trial, LaunchRefusal):
        return trial
    return EngineAddress(LOOPBACK, processes.free_port())


def launch_order(assignment: DesiredAssignment, start: StartId, port: int, directory: str) -> LaunchOrder:
    """The order for a start whose address was found."""
    plan = DRIVERS[assignment.engine.driver].launch(LaunchInput(start=start, assignment=assignment, port=port))
    assert isinstance(plan, LaunchPlan), plan
    return LaunchOrder(
        start=start,
        argv=plan.argv,
        environment=plan.environment,
        working_directory=directory,
        log_name=plan.log_name,
    )


def log_name(assignment: DesiredAssignment) -> str:
    """The log that an assignment's starts write, one after another."""
    return f"{assignment.assignment}.log"
