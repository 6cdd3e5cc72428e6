"""The replayer: a process that reads the store beside the controller and replays its rows."""
