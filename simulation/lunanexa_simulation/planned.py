"""Scenarios that the simulator is to have, each with the feature of the product that it waits for."""

from typing import Final

from lunanexa_simulation.documents import ScenarioDocument

PLANNED: Final = tuple(
    ScenarioDocument(name=name, summary=summary, waits_for=waits_for)
    for name, summary, waits_for in (
        ("canary-rollback", "a canary breaks its bounds under load and is rolled back", "canary rollouts"),
        ("canary-never-starts", "a canary that never starts; what served goes on serving", "canary rollouts"),
        ("licence-revoked", "the licence of a model is revoked under load", "licences of models"),
        ("artifact-corrupt", "an artifact arrives slowly, cut and changed; nothing of it is run", "the artifact store"),
        ("scene-switch", "a switch of scene that fails at each of its steps", "scenes"),
        ("floor-breach", "a deployment falls below its floor of replicas, and is brought back", "floors of replicas"),
        ("device-lost", "an accelerator is lost, or does not say what memory it has", "accelerators in placement"),
        ("tenant-quota", "budgets of tenants are used up, refilled and never passed", "budgets of tenants"),
    )
)
