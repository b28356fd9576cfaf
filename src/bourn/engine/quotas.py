"""How many basins and streams there may be, where the operator says so.

What is being deleted counts until it is gone. Asked in the very moment of a creation, so that of
two requests for the last place one has it.
"""

from bourn.catalog.changes import Decision, Provision
from bourn.catalog.rows import BasinRow, StreamRow
from bourn.engine.state import State
from bourn.errors import QuotaExhausted
from bourn.settings import EngineSettings


def check_quota(
    decision: Decision[BasinRow] | Decision[StreamRow], state: State, settings: EngineSettings
) -> None:
    """Let a decision pass that is yet to be applied; QuotaExhausted if it creates one too many."""
    if decision.provision is not Provision.CREATED:
        return
    row = decision.row
    if isinstance(row, BasinRow):
        quota = settings.quota_basins
        if quota is not None and len(state.basins) >= quota:
            raise QuotaExhausted(f"the quota of basins, {quota}, is used up: delete some first")
    else:
        quota = settings.quota_streams_per_basin
        if quota is not None and state.metering.streams_of(row.basin_id) >= quota:
            raise QuotaExhausted(
                f"the basin's quota of streams, {quota}, is used up: delete some first"
            )
