"""The controller: one kernel task that writes, and services that ask it and follow what it decided."""
