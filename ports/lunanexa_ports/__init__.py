"""What the rules need of the world (driven ports) and what the world may ask of us (driving ports)."""
