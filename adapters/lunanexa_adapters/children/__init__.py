"""Child processes of ``lunanexa up`` on Linux."""
