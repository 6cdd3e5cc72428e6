"""Engine processes of this machine: started so that no crash loses them, found again by proof only (Linux)."""
