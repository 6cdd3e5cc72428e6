"""The commands of ``lunanexa-sim``."""
