"""The commands of ``lunanexa-node``."""
