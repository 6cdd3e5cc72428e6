"""What an agent finds on its machine: addresses, disks, devices."""
