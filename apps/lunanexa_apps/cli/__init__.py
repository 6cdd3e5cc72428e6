"""The ``lunanexa`` program: one module a command, loaded when it is asked for."""
